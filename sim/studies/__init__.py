"""Case studies: questions about language models on GPUs, each answered by simulating what it compares."""
