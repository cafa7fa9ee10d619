"""What commands show: tables and progress in a terminal, and pictures."""
