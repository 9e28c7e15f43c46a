"""Row programs, compared with PyTorch, Inductor and OpenVINO."""
