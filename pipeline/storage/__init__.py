"""The files of a run: run folder, record, checkpoint, saved model, backup."""
