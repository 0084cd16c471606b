"""The sharded store keeps the contract: on one shard all but what it refuses, across shards all that needs no order."""

from pathlib import Path
from typing import Any

import pytest

from durabus.clock import ManualClock
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance

ONE_ORDER = {
    "ids and batches follow the order of publishing": [
        "test_events_are_found_by_time_of_publishing",
        "test_events_that_meet_every_condition_are_found",
        "test_ids_of_later_batches_are_larger_on_every_node",
        "test_known_and_new_events_mix_in_one_batch",
        "test_new_events_are_pending_and_returned_in_the_order_given",
        "test_a_page_that_begins_inside_a_filter_goes_on_with_it",
        "test_ten_thousand_events_are_one_batch",
        "test_the_id_of_a_removed_event_is_not_given_again",
        "test_the_last_page_says_that_it_is_the_last",
    ],
    "claims come in the order of ids": [
        "test_a_claim_by_tags_takes_events_that_carry_one_of_them",
        "test_a_claim_is_bounded_by_its_limit",
        "test_a_lost_claim_does_not_keep_the_next_from_being_taken",
        "test_a_repeat_keeps_the_order_and_takes_nothing_from_others",
        "test_a_retry_that_waits_lets_younger_events_pass",
        "test_an_event_asked_for_by_name_is_claimed_before_all_others",
        "test_an_event_that_became_due_takes_the_place_of_its_id",
        "test_an_event_that_came_back_keeps_the_place_of_its_id",
        "test_each_bus_has_its_own_queue",
        "test_each_of_many_racing_batches_is_in_order",
        "test_events_come_in_the_order_they_were_published",
        "test_expired_claims_and_new_events_are_ordered_together",
        "test_larger_priority_goes_first",
        "test_settling_claims_the_next_events_in_the_same_step",
        "test_work_left_by_a_worker_that_is_gone_is_done_once",
    ],
    "the log has one commit order, and a position one entry": [
        "test_a_batch_is_logged_in_its_order",
        "test_a_position_stays_valid_when_its_entry_is_gone",
        "test_a_reader_misses_nothing_while_tasks_write",
        "test_a_reader_misses_nothing_while_threads_write",
        "test_each_stored_event_has_one_published_entry",
        "test_entries_can_be_read_up_to_a_position",
        "test_forgotten_entries_do_not_count",
        "test_ids_and_keys_of_purged_events_are_free_again",
        "test_cut_log_returns_at_most_limit_pieces",
        "test_pieces_give_every_entry_once_to_readers_side_by_side",
        "test_the_log_entries_of_forgotten_events_go_too",
        "test_the_log_is_cut_into_pieces_of_so_many_entries",
        "test_the_start_is_before_the_first_entry",
        "test_the_trail_of_one_event_is_oldest_first",
    ],
    "what is forgotten under a limit is the oldest of all": [
        "test_an_event_that_ended_late_stays_alone",
        "test_cancelled_events_count_as_kept",
        "test_events_beyond_the_newest_are_forgotten",
        "test_newest_means_largest_id_whichever_ended_last",
        "test_purging_takes_the_oldest_first_and_at_most_limit",
        "test_the_oldest_go_first_and_at_most_limit",
        "test_the_oldest_ids_go_first_and_at_most_limit",
        "test_what_is_kept_keeps_its_order_and_content",
    ],
    "a claim tells the revision of all shards": ["test_a_claim_carries_the_revision_it_was_granted_at"],
}
"""What ``one_order=False`` gives up between shards, and the tests of it. `tests/sharded` has what holds instead."""


class TestOneShard(StoreConformance):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store("sharded://memory://", clock=clock)


class AcrossShards(StoreConformance):
    """The suite without the tests about the order of events on different shards."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in (name for names in ONE_ORDER.values() for name in names):
            hidden: Any = None
            setattr(cls, name, hidden)


class TestMemoryShards(AcrossShards):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store("sharded://memory://|memory://|memory://", clock=clock)


@pytest.mark.long
class TestSQLiteShards(AcrossShards):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        return await open_store(f"sharded://sqlite:///{place}/0.db|sqlite:///{place}/1.db", clock=clock)


def test_what_is_given_up_is_part_of_the_suite() -> None:
    known = set(dir(StoreConformance))
    assert {name for names in ONE_ORDER.values() for name in names} <= known
