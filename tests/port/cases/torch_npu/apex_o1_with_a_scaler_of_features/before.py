from apex import amp
from sklearn.preprocessing import StandardScaler

scaler = StandardScaler()
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for x in data:
    loss = model(scaler.transform(x)).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
