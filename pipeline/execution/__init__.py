"""Training of a round's clients, in this process or in Ray actors, with the same bits."""
