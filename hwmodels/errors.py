"""The one error for what a user gave. `workloads` and `sim` share it; it is all that `workloads` takes from here."""


class ConfigError(ValueError):
    """Input refused: the message names the parameter, the value and the allowed range, in one line."""
