//! The page of forecasts, with a forecaster of the test.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{MadeRun, Running, make};
use crate::pages::{HOSTILE, data, shown_text};
use serde_json::json;
use stratus_ui::{ForecastExperiment, ForecastRequest, Forecaster};

/// Answers with the request, and counts. A forecast of `slow` waits until it is let go.
#[derive(Default)]
struct Echo {
    count: AtomicUsize,
    gate: Mutex<()>,
}

impl Forecaster for Echo {
    fn experiments(&self) -> Vec<String> {
        vec!["digits".to_owned(), "slow".to_owned(), "panics".to_owned()]
    }

    fn precisions(&self) -> Vec<String> {
        vec!["f32".to_owned()]
    }

    fn forecast(&self, request: &ForecastRequest) -> Result<String, String> {
        self.count.fetch_add(1, Ordering::SeqCst);
        let name = match &request.experiment {
            ForecastExperiment::Builtin(name) => name.clone(),
            ForecastExperiment::Run(path) => path.display().to_string(),
        };
        match (name.as_str(), request.batch.as_str()) {
            ("slow", _) => drop(self.gate.lock().unwrap()),
            ("panics", _) => panic!("a forecaster that fails"),
            (_, "0") => return Err(format!("--batch: not 0 {HOSTILE}")),
            _ => {}
        }
        Ok(json!({"name": name, "batch": request.batch, "objective": request.objective}).to_string())
    }
}

fn serve(root: &std::path::Path) -> (Running, Arc<Echo>) {
    let echo = Arc::new(Echo::default());
    (Running::with_forecaster(root, Arc::clone(&echo) as Arc<dyn Forecaster>), echo)
}

#[test]
fn forecasts_are_computed_once_for_an_experiment_or_a_run() {
    let root = tempfile::tempdir().unwrap();
    let path = make(root.path(), &MadeRun::default());
    let (server, echo) = serve(root.path());
    let choices = data(&server.get("/forecast").body);
    assert_eq!(choices["experiments"], json!(["digits", "slow", "panics"]));
    assert_eq!(choices["runs"], json!([[server.id("digits/1"), "digits/1"]]));
    let address = "/api/forecast?experiment=digits&batch=64,128&objective=deadline%3D6h";
    let expected = json!({"name": "digits", "batch": "64,128", "objective": "deadline=6h"});
    assert_eq!(server.json(address), expected);
    assert_eq!((server.json(address), echo.count.load(Ordering::SeqCst)), (expected, 1));
    let of_run = server.json(&format!("/api/forecast?run={}", server.id("digits/1")));
    assert_eq!(of_run["name"], path.canonicalize().unwrap().display().to_string());
    assert_eq!(of_run["objective"], "value");
}

#[test]
fn invalid_requests_are_refused_as_text() {
    let root = tempfile::tempdir().unwrap();
    let (server, echo) = serve(root.path());
    for (query, status) in [
        ("", 404),
        ("?experiment=..%2Fruns", 404),
        ("?experiment=%2Fetc%2Fpasswd", 404),
        ("?run=..", 404),
        ("?run=0123456789abcdef", 404),
    ] {
        assert_eq!(server.get(&format!("/api/forecast{query}")).status, status, "{query}");
    }
    let long = "9".repeat(300);
    assert_eq!(server.get(&format!("/api/forecast?experiment=digits&images={long}")).status, 422);
    assert_eq!(echo.count.load(Ordering::SeqCst), 0);
    let refused = server.get("/api/forecast?experiment=digits&batch=0");
    assert_eq!((refused.status, refused.header("content-type")), (422, "application/json"));
    let refusal: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(refusal["error"], format!("--batch: not 0 {}", shown_text(HOSTILE)));
    // A forecaster that fails does not end the server.
    assert_eq!(server.get("/api/forecast?experiment=panics").status, 422);
    assert_eq!(server.get("/forecast").status, 200);
}

#[test]
fn a_run_that_cannot_be_read_is_refused_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &MadeRun::default());
    std::fs::write(run.join("experiment.toml"), "[train\n").unwrap();
    let (server, echo) = serve(root.path());
    let refused = server.get(&format!("/api/forecast?run={}", server.id("digits/1")));
    assert_eq!((refused.status, refused.header("content-type")), (422, "application/json"));
    let refusal: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert!(refusal["error"].as_str().unwrap().contains("experiment.toml"), "{refusal}");
    assert_eq!(echo.count.load(Ordering::SeqCst), 0);
}

#[test]
fn a_long_forecast_delays_neither_pages_nor_is_it_queued_without_end() {
    let root = tempfile::tempdir().unwrap();
    let (server, echo) = serve(root.path());
    let gate = echo.gate.lock().unwrap();
    let statuses: Vec<u16> = std::thread::scope(|threads| {
        let server = &server;
        let ask = |batch: usize| {
            threads.spawn(move || server.get(&format!("/api/forecast?experiment=slow&batch={batch}")).status)
        };
        let all: Vec<_> = (1..=7).map(ask).collect();
        // Those that find too many others are answered at once, while the first one is computed.
        while all.iter().filter(|one| one.is_finished()).count() < 3 {
            std::thread::yield_now();
        }
        while echo.count.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(server.get("/forecast").status, 200);
        assert_eq!(server.get("/").status, 200);
        assert_eq!(echo.count.load(Ordering::SeqCst), 1);
        drop(gate);
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 4, "{statuses:?}");
}

#[test]
fn a_server_without_forecaster_says_so() {
    let root = tempfile::tempdir().unwrap();
    let server = Running::start(root.path());
    assert_eq!(data(&server.get("/forecast").body)["is_available"], false);
    assert_eq!(server.get("/api/forecast?experiment=digits").status, 404);
}
