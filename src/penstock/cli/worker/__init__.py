"""`penstock worker`: runs the subscriptions of an application as a process."""
