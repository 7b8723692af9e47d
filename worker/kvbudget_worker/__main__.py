"""``python -m kvbudget_worker``: serves the Plan at ``$KVBUDGET_PLAN``."""

import functools
import logging
import os
import sys

from kvbudget.errors import InputError
from kvbudget_worker.lastwords import leave
from kvbudget_worker.loading import load_model
from kvbudget_worker.server import bind, read_plan, serve
from kvbudget_worker.settings import Settings


def main() -> int:
    """Exit code: 0 after an orderly drain, 1 otherwise. What a user can fix is told in one line on stderr, and every
    error is left in the termination log, from where it comes into the pod's status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = Settings.from_env(os.environ)
        plan = read_plan(str(settings.plan_path))
        sock = bind(settings.host, settings.port)
        return serve(plan, sock, functools.partial(load_model, plan, settings.device))
    except InputError as error:
        line = f"error: {' '.join(str(error).split())}"
        sys.stderr.write(f"{line}\n")
        leave(line)
        return 1
    except Exception as error:
        leave(f"error: {type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    sys.exit(main())
