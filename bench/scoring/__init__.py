"""Scores measured points of real engines: ``points`` reads them, ``models`` finds shapes, ``cards`` memory, ``checks``
and ``kvchecks`` compare, ``report`` prints."""
