"""The Prefect flow of the graph: one task for each stage, with retries where they can help.

dvc.yaml defines the stages and their order, and DVC decides whether a stage must run; this package
decides when, where and how often. Import it only in a flow's process, after `environment.prepare`.
"""

from contextlib import ExitStack

from prefect import flow, get_run_logger
from prefect.client.schemas import State
from prefect.runtime import flow_run as current
from prefect.states import Completed, Failed

from pipeline.workflow import lockfile, plan, schedule, summary
from pipeline.workflow import shares as split
from pipeline.workflow.flow import artifacts, checkout, environment
from pipeline.workflow.flow.hosts import stopped
from pipeline.workflow.flow.tasks import Tasks
from pipeline.workflow.processes import Stop, signals
from pipeline.workflow.stage_run import Outcome
from rrcm.core.errors import RrcmError


def _title() -> str:
    """The title of a run on Prefect's pages."""
    forced = ", ".join(current.parameters.get("force") or ())
    wanted = ", ".join(current.parameters.get("targets") or ()) or "all stages"
    return f"{wanted}; {forced} in any case" if forced else wanted


@flow(name="rebuild", flow_run_name=_title, persist_result=False)
def rebuild(
    targets: list[str] | None = None,
    force: list[str] | None = None,
    hosts: bool = False,
    retries: int = 2,
    commit: str = "",
    shares: int = 1,
) -> State:
    """Bring ``targets`` up to date; without targets, all of dvc.yaml.

    A failed stage is retried from its last checkpoint; stages that do not need it go on. The run
    fails if any stage did, and names it. A run stopped by a signal or in Prefect leaves no process
    behind, and the next run resumes from the saved state.

    Args:
        targets: Stages, groups, patterns or outputs.
        force: Stages, groups, patterns or outputs to run even if up to date.
        hosts: Run stages on workers, each in a clone of its own, instead of in this checkout.
        retries: Further tries of a stage that fails.
        commit: The commit to run, which is checked out if there are no edits; empty: as it is.
        shares: Into how many tasks each sampling of votes is split.
    """
    logger, stop = get_run_logger(), Stop()
    with ExitStack() as stack:
        stack.enter_context(signals(stop, logger.warning))
        try:
            environment.enter()
            if hosts or commit:
                commit = checkout.asked(commit)
            stack.enter_context(checkout.at(commit, stop=stop, say=logger.info))
            if restored := lockfile.restore():
                logger.warning(restored)
            nodes = plan.load(targets or [], force=force or [], here=not hosts)
            nodes = split.expanded(nodes, count=shares)
            tasks = Tasks(commit=commit if hosts else "", stop=stop)
            results = schedule.run(nodes, tasks, retries=retries, stop=stop)
            artifacts.show(results)
        except RrcmError as error:
            return stopped(stop) if stop.is_set() else Failed(message=str(error))
        told = summary.sentence(results)
        over = len(results) == len(nodes) and all(one.outcome != Outcome.STOPPED for one in results)
        if stop.is_set() and not over:  # a later stop changes nothing
            return stopped(stop, told)
        failed = any(result.outcome == Outcome.FAILED for result in results)
        return Failed(message=told) if failed else Completed(message=told)
