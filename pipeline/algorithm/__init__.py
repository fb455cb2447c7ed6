"""What every method is made of: the contract, and the mathematics that methods share."""
