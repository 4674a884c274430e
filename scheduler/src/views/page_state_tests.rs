//! Editions of the page's state.

use aliquot_core::request_annotation::REQUEST;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::*;
use crate::ledger_cache::tests::{node, pod, pod_with};

/// Two nodes, a pod on one of them, and a pending one.
pub(in super::super) fn cache() -> LedgerCache {
    let cache = LedgerCache::default();
    let nodes = ["b", "a"].map(|name| node(name, 1000));
    Index::<Node>::reset(&cache, nodes.to_vec());
    let pods = vec![pod("holder", 600, Some("a")), pod("p", 500, None)];
    Index::<PodView>::reset(&cache, pods);
    cache
}

/// Asks every two seconds with the edition that it has.
struct Browser {
    editions: Editions,
    now: Instant,
    edition: Option<String>,
}

impl Default for Browser {
    fn default() -> Self {
        Self {
            editions: Editions::default(),
            now: Instant::now(),
            edition: None,
        }
    }
}

impl Browser {
    fn first(mut self, cache: &LedgerCache) -> Value {
        self.ask(cache)
    }

    fn ask(&mut self, cache: &LedgerCache) -> Value {
        self.now += INTERVAL;
        self.editions
            .update(cache, &Hour::default(), true, self.now);
        let answer = self.editions.answer(self.edition.as_deref());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        self.edition = answer["edition"].as_str().map(str::to_owned);
        answer
    }
}

fn names(answer: &Value) -> Vec<&str> {
    let nodes = answer["nodes"].as_array().unwrap();
    nodes
        .iter()
        .filter_map(|one| one["node"].as_str())
        .collect()
}

#[test]
fn pending_pod_shows_request_from_its_annotation() {
    let cache = LedgerCache::default();
    let request = json!({"v": 1, "containers": {"main": {"memory": 700, "cores": 30}}});
    let annotated = json!({
        "metadata": {"annotations": {REQUEST: request.to_string()},
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    });
    Index::apply(&cache, pod_with("p", 500, None, annotated));
    let state_json = Browser::default().first(&cache);
    let waiting = &state_json["rest"]["waiting"][0];
    assert_eq!(waiting["annotated"], true);
    assert_eq!(waiting["since"], "2026-01-01T00:00:00Z");
    assert_eq!(state_json["rest"]["asked"]["memory"], 700);
    let asked = &waiting["requests"][0];
    assert_eq!(
        (&asked["memory"], &asked["cores"]),
        (&json!("700 MiB"), &json!(30))
    );
}

#[test]
fn answers_with_what_changed_since_the_browsers_edition() {
    let cache = cache();
    let mut browser = Browser::default();
    let all = browser.ask(&cache);
    assert_eq!((&all["all"], names(&all)), (&json!(true), vec!["a", "b"]));
    let check = |answer: &Value, nodes: &[&str], gone: Value, has_rest: bool| {
        assert_eq!(answer["all"], false);
        assert_eq!((names(answer), &answer["gone"]), (nodes.to_vec(), &gone));
        assert_eq!(answer["rest"].is_object(), has_rest, "{answer}");
    };
    check(&browser.ask(&cache), &[], json!([]), false);

    Index::apply(&cache, pod("q", 100, Some("b")));
    let one = browser.ask(&cache);
    check(&one, &["b"], json!([]), false);
    let share = &one["nodes"][0]["gpus"][0]["shares"][0];
    let expected = (&json!("q"), &json!(true));
    assert_eq!((&share["pod"], &share["confirmed"]), expected);

    Index::apply(&cache, pod("r", 100, None));
    check(&browser.ask(&cache), &[], json!([]), true);

    Index::<Node>::delete(&cache, node("b", 1000));
    check(&browser.ask(&cache), &[], json!(["b"]), false);
    Index::<Node>::apply(&cache, node("b", 1000));
    check(&browser.ask(&cache), &["b"], json!([]), false);

    // The edition of another process, or none at all.
    for other in ["1-1", "x", ""] {
        browser.edition = Some(other.to_owned());
        assert_eq!(browser.ask(&cache)["all"], true, "{other}");
    }
}

#[test]
fn makes_no_edition_within_two_seconds_of_the_last() {
    let cache = cache();
    let mut browser = Browser::default();
    let first = browser.ask(&cache)["edition"].clone();
    Index::<Node>::delete(&cache, node("b", 1000));
    browser
        .editions
        .update(&cache, &Hour::default(), true, browser.now + INTERVAL / 2);
    let answer: Value = serde_json::from_str(&browser.editions.answer(None)).unwrap();
    assert_eq!(
        (&answer["edition"], names(&answer)),
        (&first, vec!["a", "b"])
    );
}
