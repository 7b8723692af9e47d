"""The demo's traffic: short questions, explanations and essays, as they come in a day."""

from itertools import zip_longest

from loadgen import Question

COUNTRIES = """
Italy Spain Japan Peru Kenya Norway Egypt Chile Cuba Greece Poland India Ghana Brazil Canada Austria Finland Iran Nepal
Mexico China Turkey Sweden Portugal Ireland Hungary Iceland Morocco Jordan Vietnam
"""
THINGS = """
a volcano, photosynthesis, the moon, a computer, democracy, a bridge, the ocean, electricity, a library, music,
a forest, the Silk Road, a bicycle, mathematics, the printing press
"""


def questions(count: int) -> list[Question]:
    """``count`` of them, at most 60, by turns. Together they may write 21,600 tokens, all reserved at once."""
    things = [" ".join(thing.split()) for thing in THINGS.split(",")]
    short = [Question(f"What is the capital of {country}?", 48) for country in COUNTRIES.split()]
    medium = [Question(f"Explain in a few sentences what {thing} is.", 320) for thing in things]
    long = [Question(f"Write three short paragraphs about {thing}.", 1024) for thing in things]
    by_turns = zip_longest(short, medium, long)
    return [question for turn in by_turns for question in turn if question is not None][:count]
