"""Features in user words, each tested through the whole path."""
