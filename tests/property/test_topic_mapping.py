"""Topic mapping: the queues of a filter have the messages of every name that it matches."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.gateway.mapping.topic_rule import TopicRule
from motelog.gateway.mqtt.topics import matches
from tests.unit.gateway.mapping.test_topic_mapping import RULES, mapping

LEVEL = st.sampled_from(["a", "b", "site", "fleet", "meter", "x.y", ""])
NAME = st.lists(LEVEL, min_size=1, max_size=5).map("/".join)
FILTER = st.tuples(
    st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=5), st.booleans()
).map(lambda parts: "/".join(parts[0] + ["#"] * parts[1]))


@st.composite
def rule(draw: st.DrawFn) -> TopicRule:
    """Return a rule whose templates name levels that its filter has."""
    topic_filter = draw(FILTER.filter(bool))
    levels = 3 if topic_filter.endswith("#") else min(3, topic_filter.count("/") + 1)
    texts = ["fixed", "{client_id}", *(f"{{{level}}}" for level in range(1, levels + 1))]
    if levels > 1:
        texts.append("t_{2}")
    return TopicRule(
        filter=topic_filter,
        queue_topic=draw(st.sampled_from(texts)),
        tag=draw(st.sampled_from(["", *texts])),
        queue_by=draw(st.sampled_from(["tag", "topic", "client_id"])),
    )


@given(topic_filter=FILTER, rules=st.lists(rule(), max_size=3) | st.just(list(RULES)))
def test_the_built_in_rule_is_what_its_templates_say(
    topic_filter: str, rules: list[TopicRule]
) -> None:
    built_in, written = mapping(*rules), mapping(*rules, TopicRule(filter="#", queue_topic="{1}"))
    choices = written.queue_choices(topic_filter)
    assert built_in.queue_choices(topic_filter) == choices


@settings(max_examples=300)
@given(
    names=st.lists(NAME, min_size=5, max_size=10),
    topic_filter=FILTER,
    rules=st.lists(rule(), max_size=3) | st.just(list(RULES)),
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
