"""Operations on single lanes: their meaning in numpy, conversions, expressions as programs."""
