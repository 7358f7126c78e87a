"""Topic mapping: the queues of a filter have the messages of every name that it matches."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.gateway.config import TopicRule
from motelog.gateway.mqtt.topics import matches
from tests.unit.gateway.mapping.test_topic_mapping import RULES, mapping

LEVEL = st.sampled_from(["a", "b", "site", "fleet", "meter", "x.y", ""])
NAME = st.lists(LEVEL, min_size=1, max_size=5).map("/".join)
FILTER = st.tuples(
    st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=5), st.booleans()
).map(lambda parts: "/".join(parts[0] + ["#"] * parts[1]))


TEMPLATE = st.sampled_from(["", "fixed", "{1}", "{2}", "{3}", "t_{2}", "{client_id}"])
RULE = st.builds(
    TopicRule,
    filter=FILTER.filter(bool),
    queue_topic=TEMPLATE.filter(bool),
    tag=TEMPLATE,
    queue_by=st.sampled_from(["tag", "topic", "client_id"]),
)


@settings(max_examples=300)
@given(
    names=st.lists(NAME, min_size=5, max_size=10),
    topic_filter=FILTER,
    rules=st.lists(RULE, max_size=3) | st.just(list(RULES)),
)
def test_a_filter_names_the_queue_of_every_name_it_matches(
    names: list[str], topic_filter: str, rules: list[TopicRule]
) -> None:
    topic_mapping = mapping(*rules)
    choices = topic_mapping.queue_choices(topic_filter)
    for name in names:
        if choices is not None and matches(topic_filter, name):
            mapped = topic_mapping.map_name(name, client_id="c", user_name="")
            # The default topic takes the message if the topic may not be created.
            for topic in (mapped.queue_topic or "MQTT_DEFAULT", "MQTT_DEFAULT"):
                assert (topic, None) in choices or (topic, mapped.selector) in choices
