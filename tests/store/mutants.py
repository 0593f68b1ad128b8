"""Known mistakes, each one line of the shipped scripts; many are faults of earlier job queues."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from taskhive import scripts


@dataclass(frozen=True)
class Mutant:
    """One mistake: in this file, this text becomes that one."""

    mistake: str
    file: str
    right: str
    wrong: str
    killer: str = ""
    """The test that must fail where the walk cannot get to it: `module::function[parameter=value]`."""

    def put_into(self, directory: Path) -> Path:
        """A copy of all scripts with this mistake in it."""
        shutil.copytree(scripts.lua_directory(), directory, dirs_exist_ok=True)
        path = directory / self.file
        text = path.read_text(encoding="utf-8")
        found = text.count(self.right)
        assert found == 1, f"{self.mistake}: {self.right!r} is {found} times in {self.file}"
        path.write_text(text.replace(self.right, self.wrong), encoding="utf-8")
        return directory


AGAIN, FINISH, SWEEP = "include/again.lua", "include/finish.lua", "include/sweep.lua"
ENDING, PLACE, META = "include/ending.lua", "include/place.lua", "include/meta.lua"
MEMORY, REQUESTS = "include/memory.lua", "include/requests.lua"
EXCHANGE, DISPATCH, ORDER = "exchange.lua", "dispatch.lua", "include/order.lua"
LEASES = "test_seed_faults_leases"

ADD = "add.lua"

MUTANTS = [
    # The short way of plain jobs
    Mutant(
        "the short way takes a resend of an ended job for a new one",
        ADD,
        "if is_known(K.ended) then",
        "if false then",
    ),
    Mutant(
        "the short way forgets what was dropped",
        ADD,
        "if meta[8] and (is_known(K.memory0)",
        "if false and (is_known(K.memory0)",
        "test_seed_faults_dispatch::test_a_resend_of_a_plain_job_that_was_dropped_makes_no_second_one",
    ),
    Mutant("the short way does not see a cap", ADD, "or meta[4] then", "then"),
    Mutant("the short way does not count what it makes", ADD, "(number(meta[6]) or 0) + count", "0"),
    Mutant("the short way hides a gap", ADD, "lease and now - last > lease / 2 then", "false then"),
    # Who holds a job
    Mutant(
        "a dispatch while the job runs makes it ready again",
        DISPATCH,
        "  if running then\n",
        "  if false then\n",
    ),
    Mutant(
        "a blocked run with a time of its own stays blocked for ever",
        FINISH,
        "  if place(id, created, ext, now) then ring() end",
        "  if not ext.u and place(id, created, ext, now) then ring() end",
    ),
    Mutant(
        "a settle needs no token",
        EXCHANGE,
        "if not lease or lease.token ~= token then\n",
        "if not lease then\n",
    ),
    Mutant(
        "a success settled with others needs no token",
        EXCHANGE,
        "lease.token == ARGV[i + 1] and ",
        "",
    ),
    Mutant(
        "a renewal needs no token",
        EXCHANGE,
        "if not lease or lease.token ~= token then return 0 end",
        "if not lease then return 0 end",
    ),
    Mutant(
        "a request that comes again is given new jobs",
        EXCHANGE,
        "local leases = replay()",
        "local leases = nil",
    ),
    Mutant(
        "a job whose delivery was lost never comes back",
        SWEEP,
        "  if not has(lease, STARTED) then\n",
        "  if not has(lease, STARTED) then if id then return set_mark(id, lease, EXTENDED) end\n",
    ),
    Mutant(
        "a lost delivery is a stall",
        SWEEP,
        "count(ext, 'lost')",
        "count(ext, 'stall')",
    ),
    Mutant(
        "a lost delivery goes to the end of the queue",
        SWEEP,
        "run_at(created, ext), now, lease.score)",
        "run_at(created, ext), now)",
    ),
    Mutant(
        "by hand, a lapse counts only if somebody looked",
        EXCHANGE,
        "if born == STARTED then\n",
        "if false then\n",
    ),
    Mutant(
        "a sweep fails on a record that is missing",
        SWEEP,
        "if raw then quarantine(id, raw) else bump('anomalies') end",
        "quarantine(id, raw)",
        f"{LEASES}::test_a_running_job_without_its_record_stops_nobody_else[missing=jobs]",
    ),
    Mutant(
        "a delivery may be lost for ever",
        SWEEP,
        "if (ext.d or 0) < MAX_LOST then",
        "if (ext.d or 0) < 10 * MAX_LOST then",
        f"{LEASES}::test_a_lost_delivery_is_given_up_only_after_twenty",
    ),
    # Time
    Mutant(
        "the clock goes backwards",
        META,
        "if now <= last then return last end",
        "if now <= last then return now end",
    ),
    Mutant(
        "the grace after a gap is renewed for ever",
        SWEEP,
        "if not has(lease, EXTENDED) and lapsed <",
        "if lapsed <",
    ),
    Mutant(
        "there is no grace after a gap",
        META,
        "then note('gap_end', now) end",
        "then note('gap_end', 0) end",
    ),
    Mutant(
        "a job is promoted before its time",
        SWEEP,
        "fmt(now * 256 + 255)",
        "fmt((now + 500) * 256 + 255)",
    ),
    Mutant(
        "a stalled job comes back at once",
        SWEEP,
        "now + math.min(most, least",
        "now + 0 * math.min(most, least",
    ),
    Mutant(
        "a dispatch erases a backoff it has no say in",
        DISPATCH,
        "local at = moved(before_time, spec, wanted_time(spec))",
        "local at = wanted_time(spec)",
    ),
    Mutant(
        "what expired is started all the same",
        EXCHANGE,
        "  expire(now, EXPIRED)\n",
        "",
    ),
    Mutant(
        "a cap on attempts is none",
        AGAIN,
        "if (ext.a or 0) + 1 >= MAX_ATTEMPTS then",
        "if (ext.a or 0) + 1 >= 2 * MAX_ATTEMPTS then",
        "test_seed_faults_dispatch::test_no_reset_of_counters_lifts_the_total_cap_on_attempts",
    ),
    # Updates of a job that waits or runs
    Mutant(
        "the flags of the last dispatch replace those before it",
        DISPATCH,
        "if spec.ud then ext.D = 1 end",
        "ext.D = spec.ud and 1 or nil",
    ),
    Mutant(
        "a reset of counters is lost with the run it was said to",
        AGAIN,
        "if nx.R then",
        "if false then",
    ),
    Mutant(
        "of many run times only the earliest bound is kept",
        AGAIN,
        "at = clamp(at, nx.l, nx.h)",
        "at = clamp(at, nx.l)",
    ),
    Mutant(
        "a merged run keeps its old generation",
        AGAIN,
        "      ext.g = nx.g\n",
        "",
    ),
    Mutant(
        "a cancelled blocked run takes its generation along",
        ENDING,
        "      rx.g = ext.g\n",
        "",
    ),
    # Counters and limits
    Mutant(
        "timeouts are counted as retries",
        AGAIN,
        "timeout = 't'",
        "timeout = 'r'",
    ),
    Mutant(
        "one more stall than allowed",
        SWEEP,
        "if stalls < (ext.m or",
        "if stalls <= (ext.m or",
    ),
    Mutant(
        "a release is counted",
        EXCHANGE,
        "  elseif outcome == 'release' then\n",
        "  elseif outcome == 'release' then count(ext, 'error')\n",
    ),
    # Order
    Mutant(
        "jobs are ordered by their ids",
        ORDER,
        "return (255 - prio) * CLASS + seq end",
        "return (255 - prio) * CLASS end",
    ),
    Mutant(
        "the lower priority comes first",
        ORDER,
        "return (255 - prio) * CLASS + seq end",
        "return prio * CLASS + seq end",
    ),
    Mutant(
        "a delayed job forgets its priority",
        ORDER,
        "return at * 256 + 255 - prio end",
        "return at * 256 + 255 - PRIORITY end",
    ),
    Mutant(
        "a pause holds nothing back",
        EXCHANGE,
        "if want > 0 and meta.paused ~= '1' then",
        "if want > 0 then",
    ),
    # Resends
    Mutant(
        "a settle that comes again is not known",
        EXCHANGE,
        "  remember('@' .. token, outcome)\n",
        "",
    ),
    Mutant(
        "a dispatch that comes again after the end of its job makes another",
        DISPATCH,
        "if knows(requests or nil, spec.q) then",
        "if false then",
    ),
    Mutant(
        "a generated id that comes again after its end makes another job",
        DISPATCH,
        "{K.jobs, K.ended, K.memory0, K.memory1, K.memory2}",
        "{K.jobs}",
    ),
    Mutant(
        "only the last dispatch of an id is known when it comes again",
        REQUESTS,
        "local KEPT = 8",
        "local KEPT = 1",
    ),
    Mutant(
        "a full queue refuses a dispatch that adds nothing",
        DISPATCH,
        "if added > 0 and waiting + added > depth then",
        "if waiting + (#ARGV - 1) / 3 > depth then",
    ),
    Mutant(
        "an operator's call that comes again is done again",
        "include/answered.lua",
        "if not kept then return nil end",
        "if kept ~= true then return nil end",
    ),
    Mutant(
        "a destroy that comes again drops what was dispatched meanwhile",
        "destroy.lua",
        "if call == ARGV[1] then",
        "if call == 1 then",
        "test_lost_replies::test_a_destroy_that_comes_again_spares_what_was_dispatched_meanwhile",
    ),
    Mutant(
        "what was settled long ago is never forgotten",
        MEMORY,
        "redis.call('UNLINK', bucket(e))",
        "redis.call('EXISTS', bucket(e))",
    ),
    # Ends
    Mutant(
        "the id of a failure job differs from try to try",
        FINISH,
        "redis.sha1hex(id .. ':' .. token)",
        "redis.sha1hex(id .. ':' .. fmt(now))",
    ),
    Mutant(
        "a failure without a handler leaves no failure job",
        FINISH,
        "if HAS_LANE then ext.F",
        "if false then ext.F",
    ),
    Mutant(
        "a cancelled job that ends well has succeeded",
        EXCHANGE,
        " and not has(lease, CANCELLED)",
        "",
    ),
    Mutant(
        "a cancelled job that is swept runs again",
        SWEEP,
        "  if has(lease, CANCELLED) then\n",
        "  if false then\n",
    ),
    Mutant(
        "what has ended is listed after its record is gone",
        ENDING,
        "      redis.call('ZREM', K[state], unpack(ids))\n",
        "",
    ),
    Mutant(
        "a dead letter comes back with its counters",
        "revive.lua",
        "local kept = {",
        "local kept = {r = ext.r, t = ext.t, s = ext.s, c = ext.c, ",
    ),
    Mutant(
        "a dead letter comes back beside its failure job",
        "revive.lua",
        "and redis.call('HDEL', K.fail_jobs, failure_job) == 1 then",
        "and false then",
    ),
    Mutant(
        "a running job can be removed",
        "remove.lua",
        "if redis.call('HEXISTS', K.leases, id) == 1 then",
        "if false then",
    ),
    # Memory of the server
    Mutant(
        "finished work cannot be acknowledged when memory is short",
        EXCHANGE,
        "#!lua flags=allow-oom",
        "#!lua",
        "test_seed_faults_memory::test_with_memory_used_up_work_is_settled_and_renewed",
    ),
    Mutant(
        "jobs are taken in when memory is short",
        ADD,
        "#!lua\n",
        "#!lua flags=allow-oom\n",
        "test_seed_faults_memory::test_with_memory_used_up_a_dispatch_is_refused_whole",
    ),
]
