//! Requests that are refused.

use std::os::unix::fs::symlink;

use crate::common::{MadeRun, Running, make, options};
use stratus_run::summary::Status;
use stratus_ui::{Options, Server};

#[test]
fn refuses_foreign_hosts_and_origins() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let server = Running::start(root.path());
    let port = server.address.port();
    let host = format!("127.0.0.1:{port}");
    for good in [host.clone(), format!("localhost:{port}"), format!("[::1]:{port}")] {
        assert_eq!(server.request("GET", "/", &[("Host", &good)]).status, 200, "{good}");
    }
    let other_port = format!("127.0.0.1:{}", port ^ 1);
    let suffixed = format!("127.0.0.1.evil.example:{port}");
    for bad in ["", "evil.example", "127.0.0.1", "0.0.0.0", other_port.as_str(), suffixed.as_str()] {
        let answer = server.request("GET", "/api/runs", &[("Host", bad)]);
        assert_eq!(answer.status, 403, "{bad}: {answer:?}");
        assert!(!answer.body.contains("digits"), "{bad}");
    }
    assert_ne!(server.request("GET", "/", &[]).status, 200, "no Host");
    assert_ne!(server.request("GET", "/", &[("Host", &host), ("Host", "evil.example")]).status, 200);
    // An absolute address names another host than the header.
    assert_eq!(server.request("GET", "http://evil.example/", &[("Host", &host)]).status, 403);
    let own = format!("http://{host}");
    assert_eq!(server.get_with("/api/runs", &[("Origin", &own)]).status, 200);
    for bad in ["null", "http://evil.example", "https://evil.example", "", &format!("https://{host}")] {
        assert_eq!(server.get_with("/api/runs", &[("Origin", bad)]).status, 403, "{bad}");
    }
    let mut events = server.events("");
    assert_eq!(events.status(), 200);
}

/// Browsers send no origin for images and links.
#[test]
fn pages_of_other_servers_may_link_but_not_load() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let server = Running::start(root.path());
    for (target, site, mode, status) in [
        ("/", "cross-site", "navigate", 200),
        ("/", "same-site", "navigate", 200),
        ("/", "cross-site", "no-cors", 403),
        ("/api/runs", "cross-site", "navigate", 403),
        ("/api/runs", "same-site", "no-cors", 403),
        ("/api/runs", "same-origin", "cors", 200),
        ("/api/runs", "none", "navigate", 200),
    ] {
        let headers = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", mode)];
        assert_eq!(server.get_with(target, &headers).status, status, "{target} {site} {mode}");
    }
}

#[test]
fn every_answer_has_the_policy_and_no_other_site_may_read_it() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    let answers = [
        server.get("/"),
        server.get(&format!("/run/{id}")),
        server.get(&format!("/compare?runs={id}")),
        server.get("/api/runs"),
        server.get("/assets/page.js"),
        server.get("/nowhere"),
        server.request("GET", "/", &[("Host", "evil.example")]),
    ];
    for answer in answers {
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{answer:?}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
        assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("access-control-")), "{answer:?}");
        // Nothing inline that the policy would refuse.
        if answer.header("content-type").starts_with("text/html") {
            assert!(!answer.body.contains("<style") && !answer.body.contains(" style="), "{}", answer.body);
            assert!(!answer.body.contains(" onclick=") && !answer.body.contains("javascript:"));
        }
    }
}

#[test]
fn only_get_and_small_requests_are_answered() {
    let root = tempfile::tempdir().unwrap();
    let server = Running::start(root.path());
    let host = server.address.to_string();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
        assert_eq!(server.request(method, "/", &[("Host", &host)]).status, 405, "{method}");
    }
    assert_eq!(server.request("HEAD", "/", &[("Host", &host)]).status, 200);
    assert_eq!(server.get_with("/", &[("Content-Length", "5")]).status, 400);
    assert_eq!(server.get(&format!("/?{}", "x".repeat(10_000))).status, 414);
    let long = "x".repeat(100_000);
    assert_ne!(server.get_with("/", &[("X-Long", &long)]).status, 200);
    let many = vec![("X-Many", "1"); 1000];
    assert_ne!(server.get_with("/", &many).status, 200);
    for broken in ["GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\0\u{7f}\r\n\r\n"] {
        assert_ne!(server.raw(broken).status, 200, "{broken:?}");
    }
    // It still serves.
    assert_eq!(server.get("/").status, 200);
}

/// Streams are limited, and free again when their pages are closed.
#[test]
fn too_many_streams_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let server = Running::start(root.path());
    let mut open = Vec::new();
    let refused = (0..200).find(|_| {
        let mut events = server.events("");
        let status = events.status();
        open.push(events);
        status == 503
    });
    assert_eq!(refused, Some(64));
    assert_eq!(server.get("/").status, 200);
    drop(open);
    let free = (0..600).find(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        server.events("").status() == 200
    });
    assert!(free.is_some(), "the streams of closed pages are not freed");
}

#[test]
fn paths_in_addresses_are_never_opened() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("runs");
    make(&folder, &MadeRun::default());
    std::fs::write(root.path().join("secret.txt"), "secret words").unwrap();
    let server = Running::start(&folder);
    for target in [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/run/..%2f..%2fsecret.txt",
        "/run/digits%2f1",
        "/run/digits/1",
        "/run/%00",
        "/run/%ff",
        "/assets/..%2f..%2fsecret.txt",
        "/assets/../Cargo.toml",
        "/assets/%2fetc%2fpasswd",
        "/api/runs/../../secret.txt/series",
        "/api/runs/0123456789abcdef/series",
        "//etc/passwd",
    ] {
        let answer = server.get(target);
        assert!(matches!(answer.status, 400 | 404), "{target}: {answer:?}");
        assert!(!answer.body.contains("secret words") && !answer.body.contains("root:"), "{target}");
    }
}

#[test]
fn links_out_of_the_folders_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let outside = make(elsewhere.path(), &MadeRun { name: "secret-run", ..MadeRun::default() });
    symlink(elsewhere.path(), root.path().join("linked")).unwrap();
    let run = make(root.path(), &MadeRun::default());
    std::fs::remove_file(run.join("summary.json")).unwrap();
    symlink(outside.join("summary.json"), run.join("summary.json")).unwrap();
    let other = make(root.path(), &MadeRun { path: "digits/2", ..MadeRun::default() });
    std::fs::write(elsewhere.path().join("plan.json"), "secret plan").unwrap();
    symlink(elsewhere.path().join("plan.json"), other.join("plan.json")).unwrap();
    let training = MadeRun { path: "digits/3", status: Status::Running, ..MadeRun::default() };
    let locked = make(root.path(), &training);
    symlink(elsewhere.path().join("plan.json"), locked.join("run.lock")).unwrap();
    let gone = make(root.path(), &MadeRun { path: "digits/4", ..MadeRun::default() });
    std::fs::remove_file(gone.join("experiment.toml")).unwrap();
    symlink(root.path().join("nowhere"), gone.join("experiment.toml")).unwrap();
    let server = Running::start(root.path());
    let runs = server.json("/api/runs");
    let listed: Vec<&str> =
        runs["runs"].as_array().unwrap().iter().map(|run| run["label"].as_str().unwrap()).collect();
    assert_eq!(listed, ["digits/1", "digits/2", "digits/3"]);
    assert!(!runs.to_string().contains("secret-run"), "{runs}");
    let problem = runs["runs"][0]["problem"].as_str().unwrap();
    assert_eq!(problem, "summary.json is a link that leads out of the folders");
    let third = &runs["runs"][2];
    assert_eq!(third["state"], "unreadable");
    assert_eq!(third["problem"], "run.lock is a link that leads out of the folders");
    assert_eq!(runs["problems"][0]["reason"], "experiment.toml is not a file");
    for label in listed {
        let id = server.id(label);
        for target in
            [format!("/run/{id}"), format!("/api/runs/{id}/sections"), format!("/api/runs/{id}/series")]
        {
            let answer = server.get(&target);
            assert_eq!(answer.status, 422, "{target}: {answer:?}");
            assert!(answer.body.contains("leads out of the folders"), "{}", answer.body);
        }
    }
}

#[test]
fn other_machines_need_the_token() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let server = Running::with_host(root.path(), "0.0.0.0");
    let token = server.url.split_once("?token=").unwrap().1;
    assert_eq!(token.len(), 64);
    for target in
        ["/", "/api/runs", "/events", "/assets/page.js", "/?token=", &format!("/?token={}", "0".repeat(64))]
    {
        let answer = server.get(target);
        assert_eq!(answer.status, 403, "{target}");
        assert!(!answer.body.contains("digits") && !answer.body.contains(token), "{target}");
    }
    let first = server.get(&format!("/compare?runs=a,b&token={token}&axis=time"));
    assert_eq!((first.status, first.header("location")), (303, "/compare?runs=a,b&axis=time"));
    let cookie = first.header("set-cookie");
    assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(server.get_with("/api/runs", &[("Cookie", &format!("a=b; {pair}"))]).status, 200);
    let (name, value) = pair.split_once('=').unwrap();
    for wrong in [format!("{name}={}", &value[1..]), format!("x{pair}"), format!("{name}=")] {
        assert_eq!(server.get_with("/api/runs", &[("Cookie", &wrong)]).status, 403, "{wrong}");
    }
    // The address of another server is not taken from the path.
    let sly = server.get(&format!("//evil.example/?token={token}"));
    assert!(!sly.header("location").starts_with("//"), "{sly:?}");
    assert_eq!(server.get_with("/", &[("Cookie", pair), ("Origin", "http://evil.example")]).status, 403);
    let foreign = server.request("GET", "/", &[("Host", "evil.example"), ("Cookie", pair)]);
    assert_eq!(foreign.status, 403);
}

/// A browser that is opened gets no token as an argument, which other users could read.
#[test]
fn a_browser_of_this_user_needs_no_token() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let server = Running::with_options(&Options { opens_browser: true, ..options(root.path(), "0.0.0.0") });
    assert!(server.url.contains("?token="), "{}", server.url);
    assert_eq!(server.get("/").status, 200);
    assert_eq!(server.get_with("/", &[("Origin", "http://evil.example")]).status, 403);
    assert_eq!(server.request("GET", "/", &[("Host", "evil.example")]).status, 403);
    let local = Server::bind(&Options { opens_browser: true, ..options(root.path(), "0.0.0.0") }).unwrap();
    assert_eq!(local.local_url(), format!("http://127.0.0.1:{}/", local.address().port()));
    // Without a browser to be opened, every request needs it.
    assert_eq!(Running::with_host(root.path(), "0.0.0.0").get("/").status, 403);
}

#[test]
fn a_port_in_use_is_followed_by_the_next_free_one() {
    let root = tempfile::tempdir().unwrap();
    let options = |port| Options { port, ..options(root.path(), "127.0.0.1") };
    let first = Server::bind(&options(0)).unwrap();
    let port = first.address().port();
    let second = Server::bind(&options(port)).unwrap();
    assert_ne!(second.address().port(), port);
    assert!(second.url().contains(&format!(":{}/", second.address().port())));
    let unknown = Options { host: "no-such-host.invalid".into(), ..options(0) };
    let error = Server::bind(&unknown).unwrap_err().to_string();
    assert!(error.contains("no-such-host.invalid"), "{error}");
    // An address of documentation, which no machine has.
    let foreign = Server::bind(&Options { host: "192.0.2.1".into(), ..options(0) }).unwrap_err().to_string();
    assert!(foreign.contains("cannot listen on 192.0.2.1:0"), "{foreign}");
}

#[test]
fn scripts_get_documents_also_when_there_is_no_answer() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let server = Running::start(root.path());
    let failed = [
        server.get("/api/runs/0123456789abcdef/series"),
        server.get("/api/launches/0123456789abcdef"),
        server.get("/api/no-such-address"),
        server.request("GET", "/api/runs", &[("Host", "evil.example")]),
        server.request("PUT", "/api/runs", &[]),
    ];
    for (answer, status) in failed.iter().zip([404, 404, 404, 403, 405]) {
        assert_eq!(answer.status, status, "{}", answer.body);
        let document: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert!(!document["error"].as_str().unwrap().is_empty(), "{}", answer.body);
    }
    // People get pages.
    let page = server.get("/run/0123456789abcdef");
    assert_eq!(page.status, 404);
    assert!(page.body.contains("<html") && page.body.contains("No such run"), "{}", page.body);
}
