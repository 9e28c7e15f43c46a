"""Plans of networks: which arrays hold values, how views become strides, what a stage computes."""
