"""Measurements on a machine with an NVIDIA GPU. What imports torch or triton is imported where it is used."""
