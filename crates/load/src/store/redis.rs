//! Redis: a record is a hash of fields, as in YCSB's binding, or a plain string.
//!
//! Scans use an index, a sorted set of all keys that only loads for workload E fill: it is another copy of each key.

use redis::{Connection, Pipeline, Value, cmd, pipe};

use super::{Request, Store, StoreError};
use crate::records::Shape;

/// The sorted set of all keys; YCSB's binding has the same name.
const INDEX: &str = "_indices";

/// A connection.
pub struct Redis {
    connection: Connection,
    hashes: bool,
    index: bool,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("hashes", &self.hashes).field("index", &self.index).finish()
    }
}

impl Redis {
    /// Connects to HOST:PORT. With `index`, new records are added to the index.
    ///
    /// # Errors
    /// There is no server at the address.
    pub fn connect(address: &str, shape: Shape, index: bool) -> Result<Self, StoreError> {
        let unreachable = |source: redis::RedisError| StoreError::Unreachable {
            store: "redis",
            address: address.into(),
            source: source.into(),
        };
        let client = redis::Client::open(format!("redis://{address}/")).map_err(unreachable)?;
        let connection = client.get_connection().map_err(unreachable)?;
        Ok(Self { connection, hashes: matches!(shape, Shape::Fields { .. }), index })
    }

    fn read(&self, key: &str, into: &mut Pipeline) {
        into.cmd(if self.hashes { "HGETALL" } else { "GET" }).arg(key);
    }

    /// Adds a request's commands.
    fn ask(&mut self, request: &Request<'_>, into: &mut Pipeline) -> Result<(), StoreError> {
        match request {
            Request::Read { key } => self.read(key, into),
            Request::Write { key, pieces, new } => {
                let command = into.cmd(if self.hashes { "HSET" } else { "SET" }).arg(key);
                for (field, piece) in pieces {
                    if self.hashes {
                        command.arg(format!("field{field}"));
                    }
                    command.arg(*piece);
                }
                if *new && self.index {
                    into.cmd("ZADD").arg(INDEX).arg(0).arg(key);
                }
            }
            Request::Scan { key, records } => {
                // The keys first, then their values: two round trips, as in YCSB's binding.
                let mut range = cmd("ZRANGEBYLEX");
                range.arg(INDEX).arg(format!("[{key}")).arg("+").arg("LIMIT").arg(0).arg(*records);
                let keys: Vec<String> = range.query(&mut self.connection)?;
                for key in keys {
                    self.read(&key, into);
                }
            }
        }
        Ok(())
    }
}

impl Store for Redis {
    fn send(&mut self, requests: &[Request<'_>]) -> Result<u64, StoreError> {
        let mut pipeline = pipe();
        for request in requests {
            self.ask(request, &mut pipeline)?;
        }
        if pipeline.is_empty() {
            return Ok(0);
        }
        let answers: Vec<Value> = pipeline.query(&mut self.connection)?;
        Ok(u64::try_from(answers.iter().filter(|answer| is_nothing(answer)).count()).unwrap_or(0))
    }
}

/// Whether an answer of Redis means that the record is missing.
fn is_nothing(answer: &Value) -> bool {
    match answer {
        Value::Nil => true,
        Value::Array(items) => items.is_empty(),
        Value::Map(items) => items.is_empty(),
        _ => false,
    }
}
