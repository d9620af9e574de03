"""How each database spells types and statements, connects, and what its errors mean."""
