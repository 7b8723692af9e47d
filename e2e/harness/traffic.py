"""The demo's traffic: short questions, sentences and paragraphs, as they come in a day.

Like most clients they allow far more tokens than their answers need. All that is allowed is reserved, so together they
ask for more than a replica's budget; what they do not use comes back the moment an answer ends.
"""

from itertools import zip_longest

from loadgen import Question

COUNTRIES = """
Italy Spain Japan Peru Kenya Norway Egypt Chile Cuba Greece Poland India Ghana Brazil Canada Austria Finland Iran Nepal
Mexico China Turkey Sweden Portugal Ireland Hungary Iceland Morocco Jordan Vietnam Colombia Romania Denmark Thailand
Senegal Uganda Belgium Croatia Ecuador Malaysia
"""
SENTENCES = """
a volcano, photosynthesis, the moon, a computer, democracy, a bridge, the ocean, electricity, a library, music,
a forest, the Silk Road, a bicycle, mathematics
"""
PARAGRAPHS = "the printing press, winter, a lighthouse, coffee, the violin, rain"


def questions(count: int) -> list[Question]:
    """``count`` of them by turns, at most 60. The 60 may write 23,552 tokens together."""
    short = [Question(f"What is the capital of {country}?", 256) for country in COUNTRIES.split()]
    medium = [Question(f"Say in one short sentence what {thing} is.", 512) for thing in _list(SENTENCES)]
    long = [Question(f"Write one short paragraph about {thing}.", 1024) for thing in _list(PARAGRAPHS)]
    by_turns = zip_longest(medium, short, long)
    return [question for turn in by_turns for question in turn if question is not None][:count]


def _list(text: str) -> list[str]:
    return [" ".join(thing.split()) for thing in text.split(",")]
