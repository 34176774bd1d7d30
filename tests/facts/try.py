import sys, time, collections
sys.path.insert(0,'.')
from fact_run import *
from mpcore_port.mindspore.checked import _signatures
pat=sys.argv[1:]
names=[n for n in _signatures() if any(n==p or (p.endswith('*') and n.startswith(p[:-1])) for p in pat)]
t=time.time()
with Pair() as pair:
    print('up',time.time()-t); t=time.time()
    f=[]
    for n in names:
        try: f+=execute(pair,[n])
        except Exception as e: print("BROKEN",n,repr(e)[:300],flush=True); raise
print('ran',len(f),time.time()-t, collections.Counter(x.end for x in f))
for x in f:
    if x.end!='same': print(x.end, x.case.why, x.case.dtype, x.case.code, '|', x.words[:160])
