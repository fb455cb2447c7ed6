"""What a run keeps: run folder, record, checkpoint, saved model, backup."""
