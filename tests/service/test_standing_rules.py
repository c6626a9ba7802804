"""Rules that hold everywhere in the code: what a caller can grow has a bound, hashes are keyed, clocks are few.

A new place fails here until it is listed with the reason why it is safe.
"""

import ast
from pathlib import Path

from service.learn.pruning import Prunings

ROOT = Path(__file__).parents[2]
CONTAINERS = ("dict", "Counter", "defaultdict", "set", "OrderedDict", "WeakValueDictionary")

# Every container of the service that starts empty and every cache, by what bounds it.
BOUNDED = {
    "the quota of loops: an entry for each, removed with it": """
        learn/follower.py:Follower.loops learn/follower.py:Follower.positions learn/follower.py:Follower.halted
        learn/follower.py:Follower._beginning learn/follower.py:Follower._midway learn/follower.py:Follower._limits
        learn/follower.py:Follower._ends learn/follower.py:Follower._complete_at learn/follower.py:Follower._to_read
        learn/follower.py:Follower.seconds learn/follower.py:Follower._removed learn/learner.py:Learner._shown
        learn/pruning.py:Prunings._after learn/pruning.py:Prunings._looked learn/pruning.py:Prunings._retry
        learn/pruning.py:Prunings.kept learn/snapshots.py:Saver._saved learn/snapshots.py:Saver._versions
        learn/snapshots.py:Saver._has_actions models/published.py:Publisher._catalogues
        models/published.py:PublishedModels._loops models/published.py:PublishedModels._kept
        models/published.py:PublishedModels._fresh models/personal.py:PersonalModels.n_users
        plugins/recommend/recommender.py:Recommender._items plugins/recommend/recommender.py:Recommender._turns
        plugins/recommend/item_lists.py:Similarity._comparisons plugins/reports/reader.py:LoopReaders._readers
        plugins/reports/personalization.py:CachedReport._reports plugins/tools/transfer.py:ModelChecks._settings
        plugins/recommend/earnings.py:Earnings._turns plugins/reports/overview.py:Summaries._entries""",
    "quotas of pending events and of their bytes": """
        learn/join.py:Join.events learn/join.py:DelayedExamples._waiting
        learn/join.py:DelayedExamples.assumed_failed plugins/reports/reader.py:Decisions.pending""",
    "the quota of settings that events wait under": """
        learn/loop_state.py:LoopState._rules plugins/reports/reader.py:LoopReader._settings""",
    "quotas of the catalogue": """
        learn/loop_state.py:LoopState.unsaved_actions models/catalogue.py:CatalogueWriter._newest
        models/catalogue.py:CatalogueCopy.actions models/catalogue.py:CatalogueCopy.references
        models/catalogue.py:CatalogueCopy.prepared plugins/recommend/items.py:Column.words
        plugins/recommend/items.py:Items.names plugins/reports/reader.py:CatalogueFeatures.by_id
        plugins/reports/report.py:PageLog._items plugins/reports/report.py:PageLog._shown""",
    "the quota of users": "models/personal.py:PersonalModels.unsaved plugins/reports/lift.py:UserSums.users",
    "requests, connections or tasks under way, which limits of requests bound": """
        log/client.py:WriterClient._waiting log/workers.py:FairTurns._waiting log/writer.py:Writer._clients
        models/published.py:Loop.lent plugins/devices/devices.py:Devices._uploading
        plugins/personalizer/jobs.py:Jobs._tasks plugins/personalizer/retraining.py:Retrainer.tasks
        plugins/recommend/earnings.py:Earnings._reading rank/ranker.py:Ranker._tasks rank/ranker.py:Ranker._large
        rank/threads.py:FairThreads.running rank/threads.py:FairThreads._waiting
        rank/threads.py:FairThreads._tasks rank/slots.py:Reserve._place_of log/sqlite.py:_Batch._changed""",
    "a number in the code: the oldest entries are removed": """
        rank/quotas.py:RewardCounts._counts rank/quotas.py:RewardCounts._before rank/quotas.py:RewardCounts._keys
        plugins/devices/devices.py:Devices._documents plugins/recommend/earnings.py:Earnings._cached
        http/audit.py:Audit._refused learn/erasures.py:Erasures.cleaned learn/follower.py:Follower.orphans
        log/workers.py:Worker._kept plugins/reports/devices.py:DeviceLog._seen
        plugins/reports/reader.py:LoopReader._apprentice plugins/reports/summary.py:HourlyCounts._counts""",
    "keys that an admin makes, or names that an operator sets": """
        http/keys.py:Keys._keys http/keys.py:Keys._hashes http/keys.py:Buckets._levels http/hosts.py:Hosts.origins
        http/hosts.py:Hosts.good log/opening.py:_CLOCKS plugins/reports/lift.py:Experiment.arms
        plugins/reports/lift.py:Experiment.before
        plugins/reports/lift.py:Experiment.resumed_arms outcomes.py:Formula.names metrics.py:_tallies""",
    "the code: routes, plug-ins, sizes of blocks": """
        http/router.py:Methods.routes http/router.py:_Node.named http/router.py:RouteTable._fixed
        models/memory.py:MemoryWriter._free log/sqlite.py:_insertion plugins/__init__.py:plugins
        plugins/reports/page.py:asset models/residual_kalman.py:Publication._firsts http/examples.py:recorded
        plugins/reports/setting_forms.py:settings_schema""",
    "a command that ends": """
        plugins/recommend/feedback_files.py:Skipped.counts plugins/recommend/feedback_files.py:Skipped.first
        plugins/tools/transfer.py:ModelChecks._failures plugins/tools/dsjson.py:_action""",
    "the size of an lru_cache": """
        http/protocol.py:head_of models/published.py:loop_key models/residual_kalman.py:template
        models/residual_kalman.py:_places outcomes.py:formula_of plugins/devices/uploads.py:_wire
        plugins/personalizer/arguments.py:read_arguments plugins/personalizer/configuration.py:_read_kept
        rank/decide.py:all_allowed""",
}
CONSTANTS = {"NO_EPOCHS", "NO_FIGURES", "NO_NAMES", "NO_ROWS"}

# Who computes an unkeyed hash, and why nobody can make it slow or wrong by choosing what is hashed.
UNKEYED = {
    "fedres/local_learners/vw.py": "a checksum of a file",
    "fedres/local_learners/linear.py": "a checksum of a file",
    "fedres/scoring/sealing.py": "a checksum of a file",
    "fedres/quantizer.py": "a checksum of a message",
    "fedres/scoring/flattening.py": "the hash of a feature, a key of models; tables of keys mix in a secret",
    "fedres/scoring/features.py": "the same",
    "fedres/decisions/constants.py": "the same, of names in the code",
    "fedres/decisions/federated_kalman.py": "a checksum of a message",
    "service/models/residual_kalman.py": "a tag of a model",
    "service/learn/loop_state.py": "a checksum of a record",
    "service/learn/snapshots.py": "a checksum of a file",
    "service/log/records.py": "a checksum of a record",
    "service/plugins/reports/reader.py": "which events are sampled for a report; of equal ones all or none",
    "bandits/evaluation/reward_model.py": "columns of a regression, where collisions add noise only",
}

# Who reads the wall clock, which may be set or be wrong. The log's times come from ``opening.py`` alone.
WALL_CLOCKS = {
    "service/times.py": "the clock of the log, which starts once and then does not follow settings of the clock",
    "service/log/writer.py": "a note that nobody reads back",
    "service/admin/status.py": "shows for how long processes have run",
    "service/http/audit.py": "times of lines",
    "service/http/keys.py": "keys expire by the time of day",
    "service/roles/supervisor.py": "shows for how long processes have run",
    "service/plugins/personalizer/jobs.py": "times of jobs; one that takes too long is given up",
    "service/plugins/personalizer/configuration.py": "a date that is shown",
    "service/plugins/reports/overview.py": "since when an alarm stands, which is shown",
    "service/plugins/recommend/recommender.py": "items expire by the time of day",
    "clients/python/fedres_client/event_ids.py": "ids that begin with the time; the rest is random",
    "fedres/client/device.py": "numbers of uploads begin with the time of day, and never go back",
}


def sources(*packages):
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def is_empty_container(value):
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call):
        return False
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return isinstance(function, ast.Name) and function.id in CONTAINERS


def assigned(node):
    """Yield targets and values of an assignment, also of a packed one."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def containers(name, tree):
    for kind in ast.walk(tree):
        if isinstance(kind, ast.ClassDef):
            for method in kind.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    pairs = [pair for node in ast.walk(method) for pair in assigned(node)]
                    for target, value in pairs:
                        if isinstance(target, ast.Attribute) and is_empty_container(value) and not _copies(value):
                            yield f"{name}:{kind.name}.{target.attr}"
        elif isinstance(kind, ast.FunctionDef) and any("cache" in ast.unparse(each) for each in kind.decorator_list):
            yield f"{name}:{kind.name}"
    for node in tree.body:
        for target, value in assigned(node):
            is_cache = isinstance(value, ast.Call) and "lru_cache" in ast.unparse(value)
            is_container = is_empty_container(value) and not _copies(value)
            if isinstance(target, ast.Name) and (is_container or is_cache) and target.id not in CONSTANTS:
                yield f"{name}:{target.id}"


def _copies(value):
    """Return whether a container is made of another one, which is bounded itself."""
    is_default = isinstance(value, ast.Call) and ast.unparse(value.func).startswith("defaultdict")
    return isinstance(value, ast.Call) and bool(value.args) and not is_default


def test_every_container_and_cache_of_the_service_has_a_bound():
    listed = [place for places in BOUNDED.values() for place in places.split()]
    assert len(listed) == len(set(listed))
    existing = {place for name, tree in sources("service") for place in containers(name.removeprefix("service/"), tree)}
    assert sorted(existing - {*listed}) == []
    assert sorted({*listed} - existing) == []


def test_no_cache_is_unbounded_unless_its_keys_are_of_the_code():
    unbounded = set()
    for name, tree in sources("service", "fedres", "bandits", "clients/python"):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                for decorator in map(ast.unparse, node.decorator_list):
                    if decorator in ("cache", "functools.cache", "lru_cache", "lru_cache(maxsize=None)"):
                        unbounded.add(f"{name}:{node.name}")
    assert unbounded <= UNBOUNDED_CACHES


UNBOUNDED_CACHES = {
    "fedres/compiling.py:_sources",
    "service/http/examples.py:recorded",
    "service/log/sqlite.py:_insertion",
    "service/plugins/__init__.py:plugins",
    "service/plugins/reports/page.py:asset",
    "service/plugins/reports/setting_forms.py:settings_schema",
}


def calls(tree, *names):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            yield node


def test_unkeyed_hashes_are_checksums_or_keys_of_models_and_index_no_table():
    hashing = {
        name
        for name, tree in sources("fedres", "bandits", "service", "clients/python")
        if any(calls(tree, "crc32", "zlib.crc32", "hash", "adler32", "zlib.adler32"))
    }
    assert sorted(hashing - UNKEYED.keys()) == []


def test_the_wall_clock_is_read_in_few_places():
    names = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    reading = {
        name
        for name, tree in sources("fedres", "bandits", "service", "clients/python")
        if any(isinstance(node, ast.Attribute) and ast.unparse(node) in names for node in ast.walk(tree))
    }
    assert sorted(reading - WALL_CLOCKS.keys()) == []
    assert not [name for name in reading if name.startswith("service/learn/")]


def test_prunings_of_loops_that_are_gone_are_forgotten():
    prunings = Prunings()
    for kept in (prunings._after, prunings._looked, prunings._retry, prunings.kept):
        kept |= {"gone": 1, "there": 2}

    class Follower:
        loops = {}  # noqa: RUF012

    prunings.step(Follower())
    assert [prunings._after, prunings._looked, prunings._retry, prunings.kept] == [{}] * 4
