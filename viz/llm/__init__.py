"""What a person sees of a language model on a GPU: screen, list of kernels, pictures, trace; all from an LlmResult."""
