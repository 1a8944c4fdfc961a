//! Files of a web server that is slow, breaks off, lies or refuses.

use std::io::Cursor;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::web::{Reply, Server, brief, content};
use stratus_store::{RetryPolicy, Store, StoreError, is_address};

#[test]
fn reads_files_and_parts_of_them() {
    let bytes = content(300_000);
    let server = Server::start(bytes.clone(), |asked| match asked.path.as_str() {
        "/data/a%20b/%23.bin" => Reply::Serve,
        _ => Reply::Status(404, "nothing here".to_owned()),
    });
    let store = server.store();
    assert!(is_address(store.address()) && store.is_local().is_none());
    assert_eq!(store.bytes("a b/#.bin").unwrap(), Some(300_000));
    assert_eq!(store.bytes("other").unwrap(), None);
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
fn servers_that_cannot_be_asked_without_getting_are_asked_for_a_byte() {
    let bytes = content(1000);
    let server = Server::start(bytes.clone(), |asked| match asked.method.as_str() {
        "HEAD" => Reply::Status(403, String::new()),
        _ => Reply::Serve,
    });
    assert_eq!(server.store().read("a", 1000).unwrap(), bytes);
    let empty = Server::start(Vec::new(), |asked| match asked.method.as_str() {
        "HEAD" => Reply::Status(405, String::new()),
        _ => Reply::Serve,
    });
    assert_eq!(empty.store().read("a", 1000).unwrap(), b"");
    let unsized_ = Server::start(bytes, |_| Reply::Unsized);
    let error = unsized_.store().bytes("a").unwrap_err();
    assert!(error.to_string().contains("does not say how large"), "{error}");
}

#[test]
fn a_download_goes_on_where_it_broke() {
    let bytes = content(1_000_000);
    for ignores_range in [false, true] {
        let server = Server::start(bytes.clone(), move |asked| match (asked.first, asked.earlier) {
            // Each connection gives a little more, then one gives the rest.
            (_, earlier) if earlier <= 3 => Reply::Break(150_000),
            _ if ignores_range => Reply::IgnoreRange,
            _ => Reply::Serve,
        });
        let (mut copy, mut told) = (Vec::new(), Vec::new());
        let size = server.store().download("a.tar", &mut copy, &mut |done| told.push(done)).unwrap();
        assert_eq!(size, 1_000_000);
        assert!(copy == bytes, "other bytes");
        assert!(told.is_sorted() && told.last() == Some(&1_000_000));
        let starts: Vec<_> = server.asked().iter().filter_map(|asked| asked.first).collect();
        assert_eq!(starts, [0, 150_000, 300_000], "{ignores_range}");
    }
}

#[test]
fn reading_a_part_survives_breaks_and_servers_without_ranges() {
    let bytes = content(100_000);
    let server = Server::start(bytes.clone(), |asked| match asked.earlier {
        0 => Reply::Break(300),
        1 => Reply::Status(503, "later".to_owned()),
        2 => Reply::IgnoreRange,
        _ => Reply::Garbage,
    });
    let mut part = vec![0; 1000];
    server.store().read_at("a", 5000, &mut part).unwrap();
    assert_eq!(part, bytes[5000..6000]);
    assert_eq!(server.asked()[2].first, Some(5300));
}

#[test]
fn what_fails_for_a_while_is_asked_again() {
    for status in [408, 429, 500, 502, 503, 504] {
        let server = Server::start(content(10), move |asked| match asked.earlier {
            0..4 => Reply::Status(status, "busy".to_owned()),
            _ => Reply::Serve,
        });
        assert_eq!(server.store().read("a", 10).unwrap(), content(10), "{status}");
    }
    let server = Server::start(content(10), |_| Reply::Status(503, "down for repair".to_owned()));
    let error = server.store().read("a", 10).unwrap_err();
    assert!(matches!(&error, StoreError::GaveUp { tries, .. } if *tries > 5), "{error}");
    assert!(error.to_string().contains(&format!("{}/a: the server answered 503", server.address)), "{error}");
}

#[test]
fn a_server_that_wants_to_be_left_alone_is_but_not_for_ever() {
    for status in [429, 503] {
        let server = Server::start(content(10), move |asked| match asked.earlier {
            0 => Reply::Later(status, "1".to_owned()),
            _ => Reply::Serve,
        });
        let retry_policy = RetryPolicy {
            idle_timeout: Duration::from_secs(20),
            give_up_after: Duration::from_secs(20),
            ..brief()
        };
        let store = Store::open_with(&server.address, retry_policy).unwrap();
        let began = Instant::now();
        assert_eq!(store.read("a", 10).unwrap(), content(10));
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    }
    let server = Server::start(content(10), |_| Reply::Later(503, "86400".to_owned()));
    let began = Instant::now();
    let error = server.store().read("a", 10).unwrap_err();
    assert!(matches!(&error, StoreError::GaveUp { .. }), "{error}");
    // A silence each time, until patience is at its end.
    assert!((3..=8).contains(&server.asked().len()), "{}", server.asked().len());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_refusal_is_final_and_tells_no_secret() {
    let server = Server::start(content(10), |asked| {
        // As object stores do, it repeats what it was sent.
        Reply::Status(403, format!("<Error>you sent {} and sig=abc+SECRET/123=</Error>", asked.path))
    });
    let address = format!("{}?sv=2024-11-04&sig=abc%2BSECRET%2F123%3D", server.address);
    let store = Store::open_with(&address, brief()).unwrap();
    let began = Instant::now();
    let mut part = [0; 4];
    let errors = [
        store.bytes("a").unwrap_err(),
        store.read_at("a", 0, &mut part).unwrap_err(),
        store.download("a", &mut Vec::new(), &mut |_| {}).unwrap_err(),
    ];
    assert!(began.elapsed() < Duration::from_secs(1));
    // Two questions for what is known of it, each once.
    assert_eq!(server.asked().len(), 5);
    assert!(
        server.asked().iter().all(|asked| asked.path.ends_with("?sv=2024-11-04&sig=abc%2BSECRET%2F123%3D"))
    );
    for error in errors {
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        for text in
            [error.to_string(), format!("{error:?}"), format!("{store:?}"), store.address().to_owned()]
        {
            assert!(!text.contains("SECRET"), "{text}");
        }
        assert!(
            error.to_string().contains(&format!("{}/a: the server answered 403", server.address)),
            "{error}"
        );
        assert!(error.to_string().contains("credentials"), "{error}");
    }
}

#[test]
fn what_makes_no_sense_is_an_error_and_no_hang() {
    let began = Instant::now();
    let garbage = Server::start(content(10), |_| Reply::Garbage);
    let error = garbage.store().read("a.tar", 10).unwrap_err();
    assert!(matches!(error, StoreError::Wrong { .. }) && error.to_string().contains("/a.tar: "), "{error}");

    let other = Server::start(content(1000), |_| Reply::OtherPart);
    let error = other.store().read_at("a.tar", 5, &mut [0; 10]).unwrap_err();
    assert!(
        error.to_string().contains("a different range") && error.to_string().contains("bytes 6-14/1000"),
        "{error}"
    );

    // It announces more than it ever sends.
    let short = Server::start(content(1000), |_| Reply::Break(0));
    let error = short.store().read("a.tar", 1000).unwrap_err();
    assert!(matches!(error, StoreError::GaveUp { .. }) && error.to_string().contains("/a.tar: "), "{error}");

    let silent = Server::start(content(10), |_| Reply::Silence(Duration::from_secs(5)));
    let error = silent.store().read("a.tar", 10).unwrap_err();
    assert!(matches!(error, StoreError::GaveUp { .. }), "{error}");

    // Nobody listens there any more.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let store = Store::open_with(&format!("http://{free}/"), brief()).unwrap();
    let error = store.read("a.tar", 10).unwrap_err();
    assert!(matches!(error, StoreError::GaveUp { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[test]
fn a_file_that_changes_meanwhile_is_not_mixed() {
    let server = Server::start(content(100_000), |asked| match asked.earlier {
        0 => Reply::Serve,
        1 => Reply::Break(60_000),
        _ => Reply::Version("second", content(100_001)[1..].to_vec()),
    });
    let error = server.store().read("a", 100_000).unwrap_err();
    assert!(error.to_string().contains("changed while it was read"), "{error}");
}

#[test]
fn a_slow_server_is_not_a_dead_one() {
    // Longer in all than a silence or all patience may be.
    let bytes = content(100);
    let server = Server::start(bytes.clone(), |_| Reply::Trickle(1));
    let began = Instant::now();
    assert_eq!(server.store().read("a", 100).unwrap(), bytes);
    assert!(began.elapsed() > brief().give_up_after);
    assert_eq!(server.gets(), 1);
}
