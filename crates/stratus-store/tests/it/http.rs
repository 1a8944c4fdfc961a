//! Files of a web server that is slow, breaks connections, sends wrong data or refuses.

use std::io::Cursor;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::web::{Reply, Server, brief, content};
use stratus_store::{RetryPolicy, Store, StoreError, is_address};

#[test]
fn reads_whole_files_and_ranges() {
    let bytes = content(300_000);
    let server = Server::start(bytes.clone(), |request| match request.path.as_str() {
        "/data/a%20b/%23.bin" => Reply::Serve,
        _ => Reply::Status(404, "nothing here".to_owned()),
    });
    let store = server.store();
    assert!(is_address(store.address()) && store.local_root().is_none());
    assert_eq!(store.size("a b/#.bin").unwrap(), Some(300_000));
    assert_eq!(store.size("other").unwrap(), None);
    assert_eq!(store.read("a b/#.bin", 300_000).unwrap(), bytes);
    assert!(matches!(store.read("a b/#.bin", 299_999), Err(StoreError::TooLarge { .. })));
    assert!(matches!(store.read("other", 1), Err(StoreError::NotFound { .. })));
    let mut part = vec![0; 777];
    store.read_at("a b/#.bin", 123_456, &mut part).unwrap();
    assert_eq!(part, bytes[123_456..124_233]);
    for offset in [299_999, 300_000, u64::MAX] {
        let error = store.read_at("a b/#.bin", offset, &mut part).unwrap_err();
        assert!(matches!(error, StoreError::TooShort { .. }), "{error}");
    }
    assert!(matches!(store.read_at("other", 0, &mut part), Err(StoreError::NotFound { .. })));
    store.read_at("a b/#.bin", 5, &mut []).unwrap();
    assert!(matches!(store.list(""), Err(StoreError::Unsupported { .. })));
    assert!(matches!(store.upload("x", &mut Cursor::new(b"x"), 1), Err(StoreError::Unsupported { .. })));
}

#[test]
fn requests_one_byte_if_head_fails() {
    let bytes = content(1000);
    let server = Server::start(bytes.clone(), |request| match request.method.as_str() {
        "HEAD" => Reply::Status(403, String::new()),
        _ => Reply::Serve,
    });
    assert_eq!(server.store().read("a", 1000).unwrap(), bytes);
    let empty = Server::start(Vec::new(), |request| match request.method.as_str() {
        "HEAD" => Reply::Status(405, String::new()),
        _ => Reply::Serve,
    });
    assert_eq!(empty.store().read("a", 1000).unwrap(), b"");
    let unsized_ = Server::start(bytes, |_| Reply::Unsized);
    let error = unsized_.store().size("a").unwrap_err();
    assert!(error.to_string().contains("does not report the size"), "{error}");
}

#[test]
fn resumes_downloads_at_the_byte_reached() {
    let bytes = content(1_000_000);
    for ignores_range in [false, true] {
        let server = Server::start(bytes.clone(), move |request| match (request.first, request.earlier) {
            // The first connections break early, the last one sends the rest.
            (_, earlier) if earlier <= 3 => Reply::Break(150_000),
            _ if ignores_range => Reply::IgnoreRange,
            _ => Reply::Serve,
        });
        let (mut copy, mut progress) = (Vec::new(), Vec::new());
        let size = server.store().download("a.tar", &mut copy, &mut |done| progress.push(done)).unwrap();
        assert_eq!(size, 1_000_000);
        assert!(copy == bytes, "other bytes");
        assert!(progress.is_sorted() && progress.last() == Some(&1_000_000));
        let starts: Vec<_> = server.requests().iter().filter_map(|request| request.first).collect();
        assert_eq!(starts, [0, 150_000, 300_000], "{ignores_range}");
    }
}

#[test]
fn range_reads_survive_failures_and_servers_without_ranges() {
    let bytes = content(100_000);
    let server = Server::start(bytes.clone(), |request| match request.earlier {
        0 => Reply::Break(300),
        1 => Reply::Status(503, "later".to_owned()),
        2 => Reply::IgnoreRange,
        _ => Reply::Garbage,
    });
    let mut part = vec![0; 1000];
    server.store().read_at("a", 5000, &mut part).unwrap();
    assert_eq!(part, bytes[5000..6000]);
    assert_eq!(server.requests()[2].first, Some(5300));
}

#[test]
fn retries_transient_failures() {
    for status in [408, 429, 500, 502, 503, 504] {
        let server = Server::start(content(10), move |request| match request.earlier {
            0..4 => Reply::Status(status, "busy".to_owned()),
            _ => Reply::Serve,
        });
        assert_eq!(server.store().read("a", 10).unwrap(), content(10), "{status}");
    }
    let server = Server::start(content(10), |_| Reply::Status(503, "down for repair".to_owned()));
    let error = server.store().read("a", 10).unwrap_err();
    assert!(matches!(&error, StoreError::RetriesExhausted { attempts, .. } if *attempts > 5), "{error}");
    assert!(
        error.to_string().contains(&format!("{}/a: the server responded 503", server.address)),
        "{error}"
    );
}

#[test]
fn honours_retry_after_up_to_the_limit() {
    for status in [429, 503] {
        let server = Server::start(content(10), move |request| match request.earlier {
            0 => Reply::Later(status, "1".to_owned()),
            _ => Reply::Serve,
        });
        let retry_policy = RetryPolicy {
            idle_timeout: Duration::from_secs(20),
            give_up_after: Duration::from_secs(20),
            ..brief()
        };
        let store = Store::open_with_policy(&server.address, retry_policy).unwrap();
        let began = Instant::now();
        assert_eq!(store.read("a", 10).unwrap(), content(10));
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    }
    let server = Server::start(content(10), |_| Reply::Later(503, "86400".to_owned()));
    let began = Instant::now();
    let error = server.store().read("a", 10).unwrap_err();
    assert!(matches!(&error, StoreError::RetriesExhausted { .. }), "{error}");
    // Each delay is limited to the idle timeout, until the time limit is reached.
    assert!((3..=8).contains(&server.requests().len()), "{}", server.requests().len());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn refusals_are_permanent_and_redacted() {
    let server = Server::start(content(10), |request| {
        // Object stores repeat the request in error pages.
        Reply::Status(403, format!("<Error>you sent {} and sig=abc+SECRET/123=</Error>", request.path))
    });
    let address = format!("{}?sv=2024-11-04&sig=abc%2BSECRET%2F123%3D", server.address);
    let store = Store::open_with_policy(&address, brief()).unwrap();
    let began = Instant::now();
    let mut part = [0; 4];
    let errors = [
        store.size("a").unwrap_err(),
        store.read_at("a", 0, &mut part).unwrap_err(),
        store.download("a", &mut Vec::new(), &mut |_| {}).unwrap_err(),
    ];
    assert!(began.elapsed() < Duration::from_secs(1));
    // Size and download send HEAD and GET, the range read only GET.
    assert_eq!(server.requests().len(), 5);
    assert!(
        server
            .requests()
            .iter()
            .all(|request| request.path.ends_with("?sv=2024-11-04&sig=abc%2BSECRET%2F123%3D"))
    );
    for error in errors {
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        for text in
            [error.to_string(), format!("{error:?}"), format!("{store:?}"), store.address().to_owned()]
        {
            assert!(!text.contains("SECRET"), "{text}");
        }
        assert!(
            error.to_string().contains(&format!("{}/a: the server responded 403", server.address)),
            "{error}"
        );
        assert!(error.to_string().contains("credentials"), "{error}");
    }
}

#[test]
fn malformed_responses_are_errors_without_a_hang() {
    let began = Instant::now();
    let garbage = Server::start(content(10), |_| Reply::Garbage);
    let error = garbage.store().read("a.tar", 10).unwrap_err();
    assert!(
        matches!(error, StoreError::Unexpected { .. }) && error.to_string().contains("/a.tar: "),
        "{error}"
    );

    let other = Server::start(content(1000), |_| Reply::OtherRange);
    let error = other.store().read_at("a.tar", 5, &mut [0; 10]).unwrap_err();
    assert!(
        error.to_string().contains("a different range") && error.to_string().contains("bytes 6-14/1000"),
        "{error}"
    );

    // The server announces more bytes than it sends.
    let short = Server::start(content(1000), |_| Reply::Break(0));
    let error = short.store().read("a.tar", 1000).unwrap_err();
    assert!(
        matches!(error, StoreError::RetriesExhausted { .. }) && error.to_string().contains("/a.tar: "),
        "{error}"
    );

    let silent = Server::start(content(10), |_| Reply::Silence(Duration::from_secs(5)));
    let error = silent.store().read("a.tar", 10).unwrap_err();
    assert!(matches!(error, StoreError::RetriesExhausted { .. }), "{error}");

    // The port is closed.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = Store::open_with_policy(&format!("http://{free}/"), brief()).unwrap();
    let error = store.read("a.tar", 10).unwrap_err();
    assert!(matches!(error, StoreError::RetriesExhausted { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[test]
fn rejects_files_that_change_during_the_download() {
    let server = Server::start(content(100_000), |request| match request.earlier {
        0 => Reply::Serve,
        1 => Reply::Break(60_000),
        _ => Reply::Version("second", content(100_001)[1..].to_vec()),
    });
    let error = server.store().read("a", 100_000).unwrap_err();
    assert!(error.to_string().contains("changed during the read"), "{error}");
}

#[test]
fn slow_servers_do_not_time_out() {
    // The whole download takes longer than each timeout.
    let bytes = content(100);
    let server = Server::start(bytes.clone(), |_| Reply::Trickle(1));
    let began = Instant::now();
    assert_eq!(server.store().read("a", 100).unwrap(), bytes);
    assert!(began.elapsed() > brief().give_up_after);
    assert_eq!(server.gets(), 1);
}
