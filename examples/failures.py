"""What becomes of jobs that fail: retried, given up, and told to a failure handler.

python -m taskhive examples/failures.py         # a worker, in one terminal
python examples/failures.py                     # in another one
"""

from __future__ import annotations

from taskhive import Failure, Hive, JobState, PermanentError, current_job

hive = Hive()


@hive.handler(max_retries=3, min_backoff=0.1, max_backoff=1)
def deliver(parcel: str) -> str:
    """One address is wrong, and one door opens at the third ring."""
    if parcel == "nowhere":
        raise PermanentError("no such address")
    if parcel == "deaf" and current_job().attempt < 3:
        raise TimeoutError("nobody opened")
    return f"{parcel} delivered at attempt {current_job().attempt}"


@deliver.on_failure
def send_back(failure: Failure) -> str:
    """Runs as a job of its own, in the queue `deliver:fail`, and is retried for days if it fails."""
    return f"{failure.args[0]} goes back ({failure.kind}: {failure.error.message})"


def main() -> None:
    jobs = {name: deliver.dispatch(name) for name in ("plain", "deaf", "nowhere")}
    hive.wait(jobs.values(), timeout=60)
    for name, job in jobs.items():
        info = job.info()
        if info.state is JobState.SUCCEEDED:
            print(f"{name}: {job.result()}")
            continue
        # The record of a failed job names its failure job, which has a result like any other.
        print(f"{name}: {info.state}, {info.error.type if info.error else '?'}")
        assert info.failure_job is not None
        print(f"{name}: {hive.job('deliver:fail', info.failure_job).result(timeout=60)}")


if __name__ == "__main__":
    with hive:
        main()
