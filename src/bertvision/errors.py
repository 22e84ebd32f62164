"""The one exception that means the user can mend it: shown as a single message, never as a traceback."""


class UserError(Exception):
    """What was asked, what was found, what to do; names the flag and quotes the value."""


class Interrupted(UserError):
    """Ctrl-C, at a point where everything done until then is kept (or nothing had been written)."""
