BEGIN TRANSACTION;
CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            place INTEGER NOT NULL,
            revision INTEGER NOT NULL,
            head_id TEXT,
            expires_at REAL,
            record TEXT NOT NULL, size INTEGER NOT NULL DEFAULT 0, title TEXT NOT NULL DEFAULT '', pinned INTEGER NOT NULL DEFAULT 0, folded_title TEXT,
            FOREIGN KEY (id, head_id) REFERENCES entries (conversation_id, id) DEFERRABLE INITIALLY DEFERRED
        );
INSERT INTO "conversations" VALUES('chat','alice',1767225600000001,2,'e3',NULL,'{"id":"chat","owner":"alice","title":"A talk","pinned":false,"head_id":"e3","branches":["e2"],"pending":[],"input_tokens":0,"output_tokens":0,"cost":0.0,"revision":2,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","expires_at":null,"source":"","imported_at":null}',2706,'Ships',1,'ships');
INSERT INTO "conversations" VALUES('other','guest-bob',1767225600000000,1,NULL,32472144000.0,'{"id":"other","owner":"guest-bob","title":"Leaves soon","pinned":false,"head_id":null,"branches":[],"pending":[],"input_tokens":0,"output_tokens":0,"cost":0.0,"revision":1,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","expires_at":"2999-01-01T00:00:00Z","source":"","imported_at":null}',311,'Leaves soon',0,'leaves soon');
CREATE TABLE entries (
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            id TEXT NOT NULL,
            parent_id TEXT CHECK (parent_id <> id),
            entry TEXT NOT NULL,
            PRIMARY KEY (conversation_id, id),
            FOREIGN KEY (conversation_id, parent_id) REFERENCES entries (conversation_id, id)
        );
INSERT INTO "entries" VALUES('chat','e1',NULL,'{"id":"e1","parent_id":null,"message":{"parts":[{"content":"What is a harbour?","timestamp":"2026-01-01T00:00:00Z","part_kind":"user-prompt"}],"timestamp":null,"instructions":null,"kind":"request","run_id":null,"conversation_id":null,"metadata":null,"state":"complete"},"note":{"run_id":"run","model":"","ended":null,"detail":"","timings":null,"cost":null,"attachments":[],"left_out":0,"omitted":"","suspension":"","at":"2026-01-01T00:00:00Z","schema":1}}');
INSERT INTO "entries" VALUES('chat','e2','e1','{"id":"e2","parent_id":"e1","message":{"parts":[{"content":"A place for ships.","id":null,"provider_name":null,"provider_details":null,"citations":null,"part_kind":"text"}],"usage":{"input_tokens":0,"cache_write_tokens":0,"cache_write_1h_tokens":0,"cache_read_tokens":0,"output_tokens":0,"output_reasoning_tokens":0,"input_audio_tokens":0,"cache_audio_read_tokens":0,"output_audio_tokens":0,"audio_seconds":0.0,"details":{},"cost":null},"model_name":null,"model_id":null,"timestamp":"2026-01-01T00:00:00Z","kind":"response","provider_name":null,"provider_url":null,"canonical_system":null,"provider_details":null,"provider_response_id":null,"finish_reason":null,"run_id":null,"conversation_id":null,"metadata":null,"workspace_ref":null,"history_digest":null,"failed_attempts":null,"state":"complete"},"note":{"run_id":"run","model":"","ended":null,"detail":"","timings":null,"cost":null,"attachments":[],"left_out":0,"omitted":"","suspension":"","at":"2026-01-01T00:00:00Z","schema":1}}');
INSERT INTO "entries" VALUES('chat','e3','e1','{"id":"e3","parent_id":"e1","message":{"parts":[{"content":"A shelter.","id":null,"provider_name":null,"provider_details":null,"citations":null,"part_kind":"text"}],"usage":{"input_tokens":0,"cache_write_tokens":0,"cache_write_1h_tokens":0,"cache_read_tokens":0,"output_tokens":0,"output_reasoning_tokens":0,"input_audio_tokens":0,"cache_audio_read_tokens":0,"output_audio_tokens":0,"audio_seconds":0.0,"details":{},"cost":null},"model_name":null,"model_id":null,"timestamp":"2026-01-01T00:00:00Z","kind":"response","provider_name":null,"provider_url":null,"canonical_system":null,"provider_details":null,"provider_response_id":null,"finish_reason":null,"run_id":null,"conversation_id":null,"metadata":null,"workspace_ref":null,"history_digest":null,"failed_attempts":null,"state":"complete"},"note":{"run_id":"run","model":"","ended":null,"detail":"","timings":null,"cost":null,"attachments":[],"left_out":0,"omitted":"","suspension":"","at":"2026-01-01T00:00:00Z","schema":1}}');
CREATE TABLE entry_texts (
            number INTEGER PRIMARY KEY,
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            entry_id TEXT NOT NULL,
            text TEXT NOT NULL
        );
INSERT INTO "entry_texts" VALUES(1,'chat','e1','what is a harbour?');
INSERT INTO "entry_texts" VALUES(2,'chat','e2','a place for ships.');
INSERT INTO "entry_texts" VALUES(3,'chat','e3','a shelter.');
CREATE TABLE links (
            digest TEXT PRIMARY KEY,
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            ends_at REAL,
            link TEXT NOT NULL
        );
INSERT INTO "links" VALUES('d','chat',NULL,'{"digest":"d","conversation_id":"chat","owner":"alice","created_at":"2026-01-01T00:00:00Z","expires_at":null,"head_id":null,"system_prompt":null,"with_files":false}');
CREATE TABLE run_events (
            run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
            last INTEGER NOT NULL,
            first INTEGER NOT NULL,
            events TEXT NOT NULL,
            PRIMARY KEY (run_id, last)
        );
INSERT INTO "run_events" VALUES('run',1,1,'{"a":1}');
CREATE TABLE runs (
            id TEXT PRIMARY KEY,
            conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            last INTEGER NOT NULL,
            saved INTEGER NOT NULL,
            ended_at REAL
        );
INSERT INTO "runs" VALUES('run','chat',1,1,NULL);
CREATE INDEX conversations_by_owner ON conversations (owner, place);
CREATE INDEX conversations_by_expiry ON conversations (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX entries_by_parent ON entries (conversation_id, parent_id);
CREATE INDEX conversations_by_size ON conversations (owner, size);
CREATE INDEX runs_by_conversation ON runs (conversation_id);
CREATE INDEX runs_by_end ON runs (ended_at);
CREATE INDEX conversations_to_fill ON conversations (id) WHERE folded_title IS NULL;
CREATE INDEX conversations_pinned ON conversations (owner, place) WHERE pinned;
CREATE INDEX entry_texts_by_conversation ON entry_texts (conversation_id);
CREATE INDEX links_by_conversation ON links (conversation_id);
PRAGMA user_version = 6;
COMMIT;
