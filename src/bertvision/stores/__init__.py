"""Hidden states at rest: a directory of immutable safetensors shards, a manifest and Parquet rows."""
