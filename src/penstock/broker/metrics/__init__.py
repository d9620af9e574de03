"""What a broker measures: every metric by name, how it is counted, where its value comes from, how it is shown."""
