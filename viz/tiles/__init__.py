"""What a person sees of a tile search: the ranking, why one tile beats another, exports, pictures."""
