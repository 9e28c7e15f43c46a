"""Networks: functions of tensors, traced to values that are compiled as one kernel."""
