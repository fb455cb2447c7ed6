"""Who trains where: in this process or in Ray actors, with the same bits."""
