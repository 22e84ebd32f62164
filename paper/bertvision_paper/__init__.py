"""The paper beside the library: its experiments at any scale with its results beside ours (`bertvision reproduce`), and
the HDF5 files that its code left (`bertvision store import`). Built on the library as any other program would be."""
