"""The ladder: what counts, how long a ban lasts, how the level falls."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.escalation import FOREVER, START, Ban, Ladder, Step, Tally, Weights, worst_first

NOW = 1_800_000_000
ALL = Weights({"grab": 1, "login": 3, "watched": 0}, groups=True)

ladders = st.builds(
    Ladder,
    threshold=st.integers(1, 50),
    find_period=st.integers(1, 10_000),
    block_period=st.integers(1, 10_000),
    factor=st.floats(1, 10),
    max_block_period=st.integers(10_000, 10_000_000),
    decay_period=st.integers(1, 1_000_000),
)
levels = st.integers(1, 5_000)
lines = st.lists(
    st.tuples(
        st.integers(NOW - 12_000, NOW + 5),
        st.sampled_from(["grab", "login", "watched", "gone", "@api"]),
        st.integers(1, 20),
    ),
    max_size=30,
)


def ladder(**changes) -> Ladder:
    """Make a ladder whose numbers are easy to follow."""
    numbers = {"threshold": 3, "find_period": 60, "block_period": 100, "factor": 2, "max_block_period": 1_000}
    return Ladder(**(numbers | {"decay_period": 500} | changes))


@pytest.mark.parametrize(
    ("level", "expected"), [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (50_000, 1_000)]
)
def test_ban_period_as_the_level_rises_multiplies_up_to_the_cap(level, expected):
    """A ban lasts block_period x factor^(level-1), and never longer than max_block_period."""
    assert expected == ladder().ban_period(level)
    assert expected == ladder(factor=2.0).ban_period(level)


@given(ladders, levels)
def test_ban_period_of_the_next_level_is_never_shorter(steps, level):
    """Who comes back is never banned for less long, nor for longer than the cap."""
    assert steps.ban_period(level) <= steps.ban_period(level + 1) <= steps.max_block_period


@pytest.mark.parametrize(
    ("after_end", "expected"),
    [(-1, 3), (0, 3), (499.9, 3), (500, 2), (999, 2), (1_000, 1), (1_500, 0), (9e9, 0)],
)
def test_level_at_after_the_ban_falls_by_one_for_each_decay_period(after_end, expected):
    """The level falls from the ban's end on, one step for each whole decay_period."""
    assert expected == ladder().level_at(Step(3, NOW), NOW + after_end)


def test_level_at_of_a_ban_without_end_never_falls():
    """A ban that an operator made permanent keeps its level."""
    assert ladder().level_at(Step(3, FOREVER), NOW) == 3


def test_level_at_without_a_decay_period_is_gone_with_the_ban():
    """A decay period of 0 forgets a ban at its end."""
    assert ladder(decay_period=0).level_at(Step(3, NOW), NOW + 1) == 0


@given(ladders, levels, st.floats(0, 1e9), st.floats(0, 1e9))
def test_level_at_as_time_passes_only_falls(steps, level, first, more):
    """Waiting never raises a level, and a level is never negative."""
    sooner = steps.level_at(Step(level, NOW), NOW + first)
    assert 0 <= steps.level_at(Step(level, NOW), NOW + first + more) <= sooner <= level


@given(ladders, levels)
def test_level_at_after_level_times_decay_is_zero(steps, level):
    """A row of the ladder is needed for level x decay_period after its ban, and no longer."""
    rest = level * steps.decay_period
    assert steps.level_at(Step(level, NOW), NOW + rest) == 0
    assert steps.level_at(Step(level, NOW), NOW + rest - 1) == 1


def test_tally_of_mixed_offences_sums_the_weights_of_the_policys_rules():
    """Weights are summed over the policy's rules; a weight of 0 and a rule that is gone do not count."""
    seen = [
        (NOW, "grab", 2),
        (NOW - 5, "login", 1),
        (NOW, "watched", 9),
        (NOW, "gone", 9),
        (NOW - 9, "@api", 4),
    ]
    tally = ladder().tally(seen, ALL, START, now_s=NOW + 0.5)
    assert Tally(9, {"grab": 2, "login": 1, "@api": 4}, NOW - 9, NOW) == tally
    assert tally.offences == 7


def test_tally_of_a_policy_with_chosen_rules_leaves_code_groups_out():
    """A policy that names its rules sums over those alone."""
    seen = [(NOW, "grab", 2), (NOW, "@api", 4)]
    assert ladder().tally(seen, Weights({"grab": 1}, groups=False), START, now_s=NOW).by_slot == {"grab": 2}


@pytest.mark.parametrize(("age", "counted"), [(0, 1), (59, 1), (60, 0), (-1, 0)])
def test_tally_at_the_edges_of_the_find_period_counts_whole_seconds(age, counted):
    """Offences of the last find_period count, those of the future do not."""
    assert counted == ladder().tally([(NOW - age, "grab", 1)], ALL, START, now_s=NOW + 0.9).score


@pytest.mark.parametrize(("after_end", "counted"), [(-1, 0), (0, 1), (1, 1)])
def test_tally_of_offences_around_the_last_bans_end_counts_those_after_it(after_end, counted):
    """Offences before the end of a ban are used up by it."""
    step = Step(1, NOW - 10)
    assert counted == ladder().tally([(NOW - 10 + after_end, "grab", 1)], ALL, step, now_s=NOW).score


@given(ladders, lines)
def test_judge_of_any_offences_bans_at_the_threshold_and_not_below(steps, seen):
    """A ban is due exactly when the weights within the find period reach the threshold."""
    recent = [line for line in seen if NOW - steps.find_period < line[0] <= NOW]
    score = sum(count * ALL.of(slot) for _, slot, count in recent)
    ban = steps.judge(seen, ALL, START, now_s=NOW)
    assert (ban is not None) == (score >= steps.threshold)
    if ban is not None:
        assert ban.tally.score == score


@given(ladders, lines, st.integers(0, 100), st.floats(0, 30_000))
def test_judge_of_the_same_offences_again_never_bans_twice(steps, seen, level, later):
    """C107: the offences of a ban never give a second one, during the ban or ever after."""
    known = [line for line in seen if line[0] <= NOW] + [(NOW, "grab", steps.threshold)]
    ban = steps.judge(known, ALL, Step(level, NOW - 20_000), now_s=NOW)
    assert steps.judge(known, ALL, Step(ban.level, ban.ends_s), now_s=NOW + later) is None


def test_judge_of_one_who_comes_back_climbs_the_ladder():
    """Each further ban is one level up and longer; long good behaviour leads back down."""
    steps, step, now = ladder(), START, float(NOW)
    ends = []
    for _ in range(3):
        ban = steps.judge([(int(now), "grab", 3)], ALL, step, now_s=now)
        assert ban is not None
        ends.append((ban.level, ban.ends_s - now))
        step, now = Step(ban.level, ban.ends_s), float(ban.ends_s)
    assert ends == [(1, 100), (2, 200), (3, 400)]
    patient = steps.judge([(int(now) + 1_200, "grab", 3)], ALL, step, now_s=now + 1_200)
    assert patient is not None
    assert patient.level == 2


def test_judge_during_a_ban_leaves_it_alone():
    """C111: offences while banned neither lengthen a ban nor end one that is permanent."""
    for ends in (NOW + 1, FOREVER):
        assert ladder().judge([(NOW, "grab", 99)], ALL, Step(1, ends), now_s=NOW) is None


def test_judge_between_seconds_ends_the_ban_on_a_whole_one():
    """A ban lasts at least its period, and its end is a whole second, so that no offence lies on both sides."""
    ban = ladder().judge([(NOW, "grab", 3)], ALL, START, now_s=NOW + 0.25)
    assert ban is not None
    assert ban.ends_s == NOW + 101


def test_judge_of_a_policy_that_counts_nothing_bans_nobody():
    """C116: offences against another policy's rules do not count, whatever their number."""
    assert ladder().judge([(NOW, "login", 99)], Weights({"grab": 1}, groups=False), START, now_s=NOW) is None


def test_worst_first_of_several_orders_by_score_then_recency_then_name():
    """The worst come first, and the order is the same in every worker."""

    def ban(score: int, last: int) -> Ban:
        return Ban(1, NOW, Tally(score, {"grab": score}, last, last))

    bans = {"ip:b": ban(5, 1), "ip:a": ban(5, 1), "ip:c": ban(9, 1), "ip:d": ban(5, 2)}
    assert [identity for identity, _ in worst_first(bans)] == ["ip:c", "ip:d", "ip:a", "ip:b"]


def test_ban_period_of_a_factor_that_overflows_is_the_cap():
    """A level so high that its ban is no number any more gets the longest ban."""
    assert ladder(factor=math.pi).ban_period(100_000) == 1_000
