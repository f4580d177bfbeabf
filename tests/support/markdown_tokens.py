"""A long answer in realistic Markdown as tokens, for `!markdown N`: headings, lists, code, tables, formulas.

Every few tokens there is a numbered word (`word12` is token 12), as are the first and the last token. The bench looks
for these on the page, so no formula contains one.
"""

import re
from itertools import chain, repeat

SECTION = r'''
## The light §

The **lighthouse** on the point § was built of *grey stone*, which came by boat in two summers §. Its lamp is
described in [the plan](https://example.org/plan) § and set up by `lamp.trim(wick=2)` each evening §.

- Northerly wind §, rough sea
- Fog until noon §, bell rung:
  - three strokes §
  - a pause of $t = 30$ s §
- Clear §, **twelve** sails

```python
def keep(log, day):  # §
    """Write down one day §."""
    for hour in range(0, 24, 8):
        log.append({"day": day, "hour": hour, "wind": "north"})  # §
    return len(log)
```

| hour | wind § | sea |
|---|---|---|
| 8 | north § | rough |
| 16 | west | calm § |
| 24 | none § | flat |

The light is seen as far as § the horizon allows, for a height $h$ above the sea:

$$ d = \sqrt{2 R h + h^2} \approx 3.57 \sqrt{h} $$

It costs $12 § a night and $4 § in summer.

### Days §

1. Trim the wick §, fill the oil.
2. Wind the clock §: its weight of $m = 40$ kg falls § in $8$ hours.
3. Draw the curtains § before sunrise.

> The sea is never § the same twice, and the log § says so.
'''
MARK = "§"
_TOKEN = re.compile(r"\s*(?:[A-Za-z]{1,6}|\d{1,3}|[^\sA-Za-z\d])|\s+")


def markdown_tokens(count: int) -> list[str]:
    """Return an answer of exactly this many tokens."""
    pieces = chain([MARK, "\n"], chain.from_iterable(repeat(_TOKEN.findall(SECTION))))
    tokens = [piece.replace(MARK, f"word{number}") for number, piece in zip(range(count), pieces, strict=False)]
    return [*tokens[:-1], f" word{count - 1}"] if count > 1 else tokens
