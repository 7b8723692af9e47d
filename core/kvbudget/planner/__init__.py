"""Questions about any model, GPU and engine, and their answers: pure, above ``engines`` and ``shapes``.

``question`` one plan with its verdict; ``gains`` what would fit and what each remedy gains; ``grid`` the table of
what-if; ``traffic`` replicas by Little's law; ``layerview`` a model group by group; ``describe`` answers as JSON-able
data, ``text`` and ``bar`` as lines for people.
"""
