"""The commands of the command line, one module each; `app` declares them and imports each when it is run."""
