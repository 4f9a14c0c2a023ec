"""Where trainings can be sent to, one file each."""
