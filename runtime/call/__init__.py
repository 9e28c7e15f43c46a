"""From a call's arrays and numbers to the C function's arguments, each checked."""
