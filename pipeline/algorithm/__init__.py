"""The contract of a method, and the mathematics that methods share."""
