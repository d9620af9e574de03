"""Push: messages of topics delivered by HTTP to somebody who does not ask for them; on the SDK, as any application."""
