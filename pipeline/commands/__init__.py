"""What commands that need a checkout do, without their options."""
