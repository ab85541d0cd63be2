//! Traces of a few lines, written by hand after the published descriptions, and malformed ones.

use super::*;
use proptest::prelude::*;

fn all(text: &[u8]) -> Result<Vec<Request>, TraceError> {
    let mut trace = Trace::new(text, &Layout::Recognised, true)?;
    let (mut requests, mut request) = (Vec::new(), Request::default());
    while trace.next(&mut request)? {
        requests.push(request.clone());
        assert!(requests.len() < 10_000, "these traces are small");
    }
    Ok(requests)
}

fn said(text: &str) -> String {
    all(text.as_bytes()).unwrap_err().to_string()
}

fn request(op: Op, key: &str, value_bytes: usize, ttl: u32) -> Request {
    Request { op, key: key.into(), value_bytes, ttl, fill: op == Op::Get && value_bytes > 0 }
}

#[test]
fn a_meta_line_is_repeated_by_its_operation_count() {
    let text = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n\
        100,7001,8,GET,2,35,2,0,u,s\n\
        100,7002,4,GET_LEASE,1,0,0,,u,s\r\n\
        101,7002,4,SET_LEASE,,120,0,3600,u,s\n\
        102,7001,8,DELETE,1,,0,99999999999,u,s\n";
    let first = request(Op::Get, "7001....", 35, 0);
    assert_eq!(
        all(text.as_bytes()).unwrap(),
        [
            first.clone(),
            first,
            request(Op::Get, "7002", 0, 0),
            request(Op::Set, "7002", 120, 3600),
            request(Op::Delete, "7001....", 0, u32::MAX),
        ]
    );
}

#[test]
fn columns_of_metas_traces_may_be_in_any_order_and_some_absent() {
    let requests = all(b"size,op,key\n9,SET,a\n\n9,GET,a").unwrap();
    assert_eq!(requests, [request(Op::Set, "a", 9, 0), request(Op::Get, "a", 9, 0)]);
}

#[test]
fn a_line_may_have_an_operation_count_of_zero() {
    assert_eq!(all(b"key,op,size,op_count\na,SET,9,0\n").unwrap(), []);
}

#[test]
fn lines_of_twitters_traces_parse_and_keys_may_have_commas() {
    let text = "0,q:q:1:8WTfjZU14ee,17,213,4,get,0\n\
        1,a,b,,c,9,50,4,add,86400\n\
        1,k,1,0,5,incr,5\n\
        2,yDqF:3q,7,0,5,gets,0\n\
        3,k,1,0,5,delete,0\n";
    assert_eq!(
        all(text.as_bytes()).unwrap(),
        [
            request(Op::Get, "q:q:1:8WTfjZU14ee", 213, 0),
            request(Op::Set, "a,b,,c...", 50, 86400),
            request(Op::Set, "k", 0, 5),
            request(Op::Get, "yDqF:3q", 0, 0),
            request(Op::Delete, "k", 0, 0),
        ]
    );
}

#[test]
fn an_invalid_line_is_named_with_its_number_and_the_reason() {
    const HEAD: &str = "key,op,size,op_count\na,SET,9,1\n";
    for (line, why) in [
        ("a,PUT,9,1", "line 3: operation \"PUT\"; known are GET, GET_LEASE"),
        ("a,SET,9", "line 3: 3 columns, 4 are expected"),
        ("a,SET,-9,1", "line 3: size is \"-9\"; a whole number up to 134217728"),
        ("a,SET,134217729,1", "line 3: size is \"134217729\""),
        ("a,SET,9,99999999999999999999999", "line 3: op_count is"),
        (",SET,9,1", "line 3: key \"\"; a key has 1 to 250 bytes"),
        ("a b,SET,9,1", "line 3: key \"a b\""),
    ] {
        let found = said(&format!("{HEAD}{line}\n"));
        assert!(found.starts_with(why), "{line}: {found}");
    }
    assert!(said("0,k,1,2,3,get,0\n0,k,1,2,3,got,0\n").starts_with("line 2: operation \"got\""));
    let found = said("0,k,1\n");
    assert!(
        found.starts_with("line 1: 3 columns, 7 are expected, so it is not Twitter's"),
        "{found}"
    );
    for format in ["(Meta)", "(Twitter)", "oracle-general:FILE (libCacheSim)", "csv:key=COLUMN"] {
        assert!(found.contains(format), "{found}");
    }
    assert!(said("x,k,1,2,3,get,0\n").starts_with("line 1: timestamp is \"x\""));
    let long = format!("0,{},1,2,3,get,0", "k".repeat(251));
    assert!(said(&long).starts_with("line 1: key \"kkkk"));
    assert!(said(&"x".repeat(1 << 17)).starts_with("line 1: longer than 65536 bytes"));
    assert!(said("").starts_with("line 1: the trace is empty"));
    assert!(said("key,op\n").starts_with("line 1: the head names column size 0 times"));
    assert!(said("key,op,size,key\n").starts_with("line 1: the head names column key 2 times"));
}

#[test]
fn lines_of_metas_traces_may_lack_the_ttl_and_end_with_a_comma() {
    let text = b"key,op,size,ttl\na,SET,9\na,SET,9,5,\na,SET,9,,,\n";
    let stored = |ttl| request(Op::Set, "a", 9, ttl);
    assert_eq!(all(text).unwrap(), [stored(0), stored(5), stored(0)]);
    assert!(said("key,op,size,ttl\na,SET\n").starts_with("line 2: 2 columns, 4 are expected"));
    assert!(
        said("key,op,size,ttl\na,SET,9,5,6\n").starts_with("line 2: 5 columns, 4 are expected")
    );
    assert!(said("key,op,ttl,size\na,SET,9\n").starts_with("line 2: 3 columns, 4 are expected"));
}

#[test]
fn without_fill_no_read_stores() {
    let mut trace = Trace::new(&b"key,op,size\na,GET,9\n"[..], &Layout::Recognised, false).unwrap();
    let mut request = Request::default();
    assert!(trace.next(&mut request).unwrap() && !request.fill);
}

fn records(all: &[(u64, u32)]) -> Vec<u8> {
    let record = |(object, size): &(u64, u32)| {
        [
            &7_u32.to_le_bytes()[..],
            &object.to_le_bytes(),
            &size.to_le_bytes(),
            &(-1_i64).to_le_bytes(),
        ]
        .concat()
    };
    all.iter().flat_map(record).collect()
}

fn read(text: &[u8], layout: &Layout) -> Result<Vec<Request>, String> {
    let mut trace = Trace::new(text, layout, true).map_err(|error| error.to_string())?;
    let (mut requests, mut request) = (Vec::new(), Request::default());
    while trace.next(&mut request).map_err(|error| error.to_string())? {
        requests.push(request.clone());
    }
    Ok(requests)
}

#[test]
fn oracle_general_records_are_reads() {
    let layout = Layout::OracleGeneral;
    let text = records(&[(u64::MAX, 4096), (0, 0), (5, 128 << 20)]);
    assert_eq!(
        read(&text, &layout).unwrap(),
        [
            request(Op::Get, "18446744073709551615", 4096, 0),
            request(Op::Get, "0", 0, 0),
            request(Op::Get, "5", 128 << 20, 0),
        ]
    );
    assert_eq!(read(b"", &layout).unwrap(), []);
    let cut = read(&text[..30], &layout).unwrap_err();
    assert!(cut.starts_with("record 2: 6 of 24 bytes; the trace is cut off"), "{cut}");
    let large = read(&records(&[(1, u32::MAX)]), &layout).unwrap_err();
    assert!(large.starts_with("record 1: size is \"4294967295\"; a whole number"), "{large}");
}

#[test]
fn columns_are_selected_by_number_or_name_with_any_delimiter() {
    let table = |columns: &str| Layout::Table(columns.parse().unwrap());
    let two = [request(Op::Get, "A", 8371, 0), request(Op::Get, "B", 31, 0)];
    for (columns, text) in [
        (
            "key=3,size=4",
            "# timestamp (ms), op type [Put:0, Get:1], object, size\n0,1,A,8371\n1,1,B,31\n",
        ),
        ("key=3,size=4", "0,1,A,8371\n1,1,B,31"),
        ("key=3,size=4", "time op object bytes\n0 1 A 8371\n1 1 B 31\n"),
        ("key=obj,size=bytes", "bytes;obj\r\n8371;A\r\n\r\n31;B\r\n"),
        ("key=obj,size=bytes", "# bytes\tobj\n8371\tA\n31\tB\n"),
        ("key=1,size=2,op=3", "A|8371|Read\nB|31|GET\n"),
    ] {
        assert_eq!(read(text.as_bytes(), &table(columns)).unwrap(), two, "{text}");
    }
    assert_eq!(
        read(
            b"id,bytes,what,life\na,9,PUT,60\na,0,delete,\n",
            &table("op=what,ttl=life,key=id,size=bytes")
        ),
        Ok(vec![request(Op::Set, "a", 9, 60), request(Op::Delete, "a", 0, 0)])
    );
    for (columns, text, found) in [
        ("key=5,size=4", "1,2,3\n", "line 1: 3 columns, 5 are expected"),
        ("key=1,size=2", "a,1\na\n", "line 2: 1 columns, 2 are expected"),
        ("key=id,size=2", "a,1\n", "line 1: no column is called \"id\""),
        ("key=1,size=2,op=3", "a,1,get\na,1,28\n", "line 2: operation \"28\"; known are get, read"),
        ("key=1,size=2", "a,1\na,x\n", "line 2: size is \"x\""),
    ] {
        let error = read(text.as_bytes(), &table(columns)).unwrap_err();
        assert!(error.starts_with(found), "{error}");
    }
}

#[test]
fn columns_of_a_table_parse_and_print_as_typed() {
    for text in ["key=5,size=4", "key=id,size=2,op=what,ttl=9", "key=1,size=1,ttl=2"] {
        assert_eq!(text.parse::<Picked>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "key=1",
        "size=1",
        "key=0,size=1",
        "key=,size=1",
        "key=1,size=2,key=3",
        "key=1,size=2,time=3",
        "1,2",
    ] {
        assert!(text.parse::<Picked>().unwrap_err().contains("key=COLUMN,size=COLUMN"), "{text}");
    }
}

#[test]
fn a_read_error_is_reported_with_its_line() {
    struct Failing;
    impl io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let text = b"key,op,size\na,SET,1\n".chain(io::BufReader::new(Failing));
    let mut trace = Trace::new(text, &Layout::Recognised, true).unwrap();
    let mut request = Request::default();
    assert!(trace.next(&mut request).unwrap());
    let error = trace.next(&mut request).unwrap_err().to_string();
    assert_eq!(error, "line 3: reading it: the disk is gone");
}

proptest! {
    #[test]
    fn any_bytes_yield_valid_requests_or_an_error(
        head in prop::sample::select(vec!["", "key,op,size\n", "op_time,key,key_size,op,op_count,size,ttl\n"]),
        lines in prop::collection::vec(
            prop::collection::vec(prop::sample::select(b"0129,,,,GETSDLgetsd\xff k\r\n".to_vec()), 0..40), 0..8),
    ) {
        let text = [head.as_bytes(), &lines.join(&b'\n')].concat();
        let mut request = Request::default();
        if let Ok(mut trace) = Trace::new(&text[..], &Layout::Recognised, true) {
            for _ in 0..100 {
                if !matches!(trace.next(&mut request), Ok(true)) {
                    break;
                }
                prop_assert!((1..=KEY_MAX).contains(&request.key.len()));
                prop_assert!(request.key.iter().all(|byte| *byte > b' ' && *byte != 127));
            }
        }
    }
}
