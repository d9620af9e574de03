"""Messages that wait for their time: what headers ask for, the order of due times, its index, and delivery."""
